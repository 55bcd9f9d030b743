def axdiff(x):
    return x - x.amax(-1, keepdim=True)
