"""Products of few rows: as exact as torch's, and used only where they are faster."""

import pytest
import torch

from pipeline.models import products
from pipeline.models.products import MAX_ROWS, FewRowsLinear, use_fast_products

UNIT = 2.0**-24  # of rounding in float32


@pytest.fixture
def processor(tmp_path, monkeypatch):
    """Let torch with MKL run on a processor of the vendor given, on Linux."""

    def of(vendor):
        products.weight_first.cache_clear()
        (tmp_path / "cpuinfo").write_text(f"vendor_id : {vendor}\n")

    monkeypatch.setattr(products, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    yield of
    products.weight_first.cache_clear()


def linear(bias=False, dtype=torch.float32):
    return torch.nn.Linear(96, 40, bias=bias, dtype=dtype).requires_grad_(False)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "shape", [(1,), (1, 1), (1, 3), (5, 1), (2, 0), (2, 3), (1, MAX_ROWS), (1, MAX_ROWS + 1)]
)
def test_as_exact_as_the_sums_allow(shape, bias, processor):
    """A sum of d products in float32, in any order, is off by at most d units of their sizes."""
    processor("AuthenticAMD")
    layer = linear(bias)
    exact = [part.double() for part in layer.parameters()]
    use_fast_products(layer)
    assert type(layer) is FewRowsLinear
    x = torch.randn((*shape, 96), generator=torch.Generator().manual_seed(0))
    wanted = torch.nn.functional.linear(x.double(), *exact)
    sizes = torch.nn.functional.linear(x.double().abs(), *(part.abs() for part in exact))
    strided = x.transpose(0, -1).contiguous().transpose(0, -1)
    for given in (x, strided):
        outputs = layer(given)
        assert outputs.shape == wanted.shape
        assert outputs.is_contiguous()
        assert bool(((outputs - wanted).abs() <= 97 * UNIT * sizes).all())


def multiplied(monkeypatch, layer, rows):
    """Return the shapes of the first factors given to torch.mm."""
    shapes = []
    mm = torch.mm

    def spy(first, second):
        shapes.append(tuple(first.shape))
        return mm(first, second)

    monkeypatch.setattr(torch, "mm", spy)
    layer(torch.ones(rows, 96))
    return shapes


@pytest.mark.parametrize(
    ("rows", "first"), [(1, [(40, 96)]), (MAX_ROWS, [(40, 96)]), (MAX_ROWS + 1, [])]
)
def test_the_weight_comes_first_for_few_rows(rows, first, processor, monkeypatch):
    processor("AuthenticAMD")
    layer = linear()
    use_fast_products(layer)
    assert multiplied(monkeypatch, layer, rows) == first


def test_only_float32_is_changed(processor):
    processor("AuthenticAMD")
    layers = [linear(dtype=torch.bfloat16), linear().to("meta"), linear()]
    use_fast_products(*layers)
    assert [type(layer) is FewRowsLinear for layer in layers] == [False, False, True]


def test_intel_keeps_torchs_product(processor):
    processor("GenuineIntel")
    layer = linear()
    use_fast_products(layer)
    assert type(layer) is torch.nn.Linear


@pytest.mark.parametrize("lacking", ["mkl", "file"])
def test_without_mkl_or_linux_torchs_product_stays(lacking, processor, monkeypatch):
    processor("AuthenticAMD")
    if lacking == "mkl":
        monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    else:
        products.CPUINFO.unlink()
    assert not products.weight_first()
