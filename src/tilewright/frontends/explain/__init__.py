"""`tilewright explain`: a run as a lesson for somebody who knows Python and no CUDA."""
