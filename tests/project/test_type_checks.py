"""The checks of types and shapes that all tests run with."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import pytest
from beartype import beartype
from beartype.roar import BeartypeCallHintParamViolation, BeartypeCallHintReturnViolation
from jaxtyping import Array, Float, Int, PyTree, TypeCheckError

from bertjax.formatting import format_change
from bertjax.models.ops import add_bias
from tests.type_checks import names_shape, without_needless_shapes

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "annotation",
    [
        Float[Array, "batch token"],
        Float[Array, "batch"] | None,
        tuple[Int[Array, "batch"], ...],
        Mapping[str, list[Float[Array, "batch"]]],
        Callable[[Float[Array, "batch"]], int],
        Callable[[int], Float[Array, "batch"]],
        PyTree,
        PyTree[int],
        "Later",
        list["Later"],  # noqa: F821  no name that is defined
    ],
)
def test_what_names_a_shape_is_checked_with_shapes(annotation):
    assert names_shape(annotation)


@pytest.mark.parametrize(
    "annotation", [int, int | None, None, jax.Array, Callable[..., int], Mapping[str, list[float]]]
)
def test_what_names_none_is_not(annotation):
    assert not names_shape(annotation)


def test_types_and_shapes_of_the_package_are_checked(rng):
    x, bias = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((2, 3), (4,)))
    with pytest.raises(BeartypeCallHintParamViolation, match="change"):
        format_change("1")
    with pytest.raises(TypeCheckError, match="outputs"):
        add_bias(x, bias)
    assert add_bias(x, bias[:3]).shape == (2, 3)


def test_a_result_is_checked():
    @without_needless_shapes(typechecker=beartype)
    def wrong() -> int:
        return "1"

    with pytest.raises(BeartypeCallHintReturnViolation):
        wrong()


def test_without_checks_errors_are_those_that_users_see(unchecked):
    with pytest.raises(ValueError, match="format code"):
        format_change("1")
