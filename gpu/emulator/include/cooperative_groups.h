// Says so at the include instead of in a page of errors.
#error "cooperative_groups is not emulated: use __syncthreads, __syncwarp and the __shfl_*_sync functions"
