"""What the steps of a training loop cost and where the time goes, without slowing them."""
