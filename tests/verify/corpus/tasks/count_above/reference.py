def count_above(x, limit: float = 0.5):
    return (x > limit).sum(-1)
