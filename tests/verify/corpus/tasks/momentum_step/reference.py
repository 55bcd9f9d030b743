def momentum_step(p, m, g, rate: float = 0.1, decay: float = 0.9, nesterov: bool = False):
    m.mul_(decay).add_(g)
    p.sub_(rate * (g + decay * m if nesterov else m))
