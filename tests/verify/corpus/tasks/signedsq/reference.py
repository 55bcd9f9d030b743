def signedsq(x):
    return x * x.abs()
