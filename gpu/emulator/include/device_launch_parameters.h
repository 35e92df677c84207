// Stands in for the header of the same name: everything a kernel needs of it is in cuda_emulator.h.
#pragma once
