def colmean(x):
    return x.mean(0)
