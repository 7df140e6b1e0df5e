"""Operations that keep the derivatives and the batching of a JAX operation, and are compiled as another program.

A deferred operation has the name, the parameters and the result of its original. Each transformation of JAX (forward
and reverse mode, ``vmap``) transforms the original and replaces the operations of the result in turn, so derivatives of
any order are those of the original. Only when a program is compiled for a CPU is the replacement used; other devices
compile the original.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Program: TypeAlias = Callable[..., Any]
# (shapes and dtypes of the operands, parameters) -> a faster program with the same result, or None if there is none.
Rule: TypeAlias = Callable[..., Program | None]
Rewrite: TypeAlias = Callable[[Program], Program]


class Faster(NamedTuple):
    """How an operation is compiled instead.

    Attributes:
        change: what is compiled, in a few words.
    """

    rule: Rule
    change: str


@cache
def deferred(original: Primitive, rule: Rule, rewrite: Rewrite) -> Primitive:
    """The operation that is differentiated and batched as ``original``, and compiled for a CPU as ``rule`` says.

    Args:
        original: a JAX operation with one result.
        rewrite: replaces the operations of a function; for the results of transformations.
    """
    operation: Any = Primitive(f"fast_{original.name}")
    # The interfaces of operations have no types.
    evaluate: Program = original.bind
    abstract: Callable[..., Any] = original.abstract_eval
    is_unknown: Callable[[Any], bool] = ad.is_undefined_primal
    shape: Callable[..., Any] = jax.ShapeDtypeStruct

    def jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...], /, **params: Any) -> tuple[Any, Any]:
        moving = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
        call, constants = _function_of(original, primals, moving, params)

        def derivative(constants: list[Any], primals: list[Any], tangents: list[Any]) -> tuple[Any, Any]:
            return jax.jvp(lambda *moved: call(constants, moved), primals, tangents)

        pair: tuple[Any, Any] = rewrite(derivative)(constants, [primals[i] for i in moving],
                                                    [tangents[i] for i in moving])
        return pair

    def transpose(cotangent: Any, /, *operands: Any, **params: Any) -> list[Any]:
        linear = [i for i, operand in enumerate(operands) if is_unknown(operand)]
        if isinstance(cotangent, ad.Zero):
            return [ad.Zero(operands[i].aval) if i in linear else None for i in range(len(operands))]
        call, constants = _function_of(original, operands, linear, params)
        shapes = [shape(operands[i].aval.shape, operands[i].aval.dtype) for i in linear]

        def pull_back(constants: list[Any], cotangent: Any) -> Any:
            return jax.linear_transpose(lambda *moved: call(constants, moved), *shapes)(cotangent)

        results = dict(zip(linear, rewrite(pull_back)(constants, cotangent), strict=True))
        return [results.get(i) for i in range(len(operands))]

    # The names of parameters are those of the operation: a reduction has ``axes``.
    def batch(operands: tuple[Any, ...], axes: tuple[int | None, ...], /, **params: Any) -> tuple[Any, int]:
        return rewrite(jax.vmap(partial(evaluate, **params), axes))(*operands), 0

    def lower(*operands: Any, **params: Any) -> Any:
        program = rule(*operands, **params)
        return evaluate(*operands, **params) if program is None else program(*operands)

    operation.def_impl(evaluate)
    operation.def_abstract_eval(lambda *avals, **params: abstract(*avals, **params)[0])
    ad.primitive_jvps[operation] = jvp
    ad.primitive_transposes[operation] = transpose
    batching.primitive_batchers[operation] = batch
    mlir.register_lowering(operation, mlir.lower_fun(evaluate, multiple_results=False))
    mlir.register_lowering(operation, mlir.lower_fun(lower, multiple_results=False), platform="cpu")
    return operation  # type: ignore[no-any-return]


def _function_of(original: Primitive, operands: tuple[Any, ...], indices: list[int],
                 params: dict[str, Any]) -> tuple[Callable[[list[Any], Any], Any], list[Any]]:
    """``original`` as a function (constants, operands at ``indices``), and its constants: the other operands."""
    evaluate: Program = original.bind
    fixed = [i for i in range(len(operands)) if i not in indices]

    def call(constants: list[Any], moved: Any) -> Any:
        by_index = {**dict(zip(fixed, constants, strict=True)), **dict(zip(indices, moved, strict=True))}
        return evaluate(*(by_index[i] for i in range(len(operands))), **params)

    return call, [operands[i] for i in fixed]
