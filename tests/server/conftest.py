import pytest

from factories.issuer import open_issuer
from factories.server import open_server


@pytest.fixture
async def server(tmp_path):
    async with open_server(f"sqlite:///{tmp_path / 'app.db'}") as opened:
        yield opened


@pytest.fixture
def issuer():
    with open_issuer() as opened:
        yield opened
