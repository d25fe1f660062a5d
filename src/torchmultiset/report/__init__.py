"""What there is to see: tables for the terminal, pictures, and the numbers behind them as JSON."""
