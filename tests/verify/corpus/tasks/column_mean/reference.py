def column_mean(x):
    return x.mean(0)
