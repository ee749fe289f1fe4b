"""The gateway's book: endpoints, the models behind them, and the sealed keys of their providers."""
