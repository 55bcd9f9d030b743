def embed(table, idx):
    return table[idx]
