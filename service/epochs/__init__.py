"""An application's epochs, as the catalog has them."""
