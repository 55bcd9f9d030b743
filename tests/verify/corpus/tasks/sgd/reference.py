def sgd(p, g, rate: float = 0.01, decay: float = 0.1):
    p.sub_(rate * (g + decay * p))
