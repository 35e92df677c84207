"""x"""
import time
import pytest
from .drawn_problems import CONTRACTS
from .monte_carlo import tally
@pytest.mark.parametrize("contract", CONTRACTS)
def test_mc(contract):
    t=time.perf_counter(); print(contract, {k: round(v,3) for k,v in tally(contract, range(100)).items()}, round(time.perf_counter()-t,2))
