"""Operations: work that outlives its request; asked for here, carried out by a driver or by the worker."""
