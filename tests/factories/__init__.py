"""What several tests need: builders of items and model outputs, servers, clients. One module per package under test."""
