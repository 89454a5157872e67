"""The assembly that makes float16 of codes, carried out instruction by instruction on every byte there is."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton")

from pymllm.layers.kernels import codes_triton

Pairs = np.ndarray


def halves(register: Pairs) -> np.ndarray:
    return register.astype("<u4").view("<f2").reshape(-1, 2)


def carry_out(assembly: str, inputs: list[Pairs], outputs: int) -> list[Pairs]:
    """32-bit registers $0, $1, ... after the instructions that the assembly consists of; inputs come after outputs."""
    registers = {f"${outputs + i}": values for i, values in enumerate(inputs)}

    def value(name: str) -> Pairs:
        return registers[name] if name in registers else np.full_like(inputs[0], int(name, 0))

    for line in assembly.strip("{} \n").split(";"):
        name, _, rest = line.strip().partition(" ")
        if not name or name == ".reg":
            continue
        target, *operands = (part.strip() for part in rest.split(","))
        terms = [value(operand) for operand in operands]
        if name == "shr.b32":
            result = terms[0] >> terms[1]
        elif name == "mov.b32":
            result = terms[0]
        elif name == "lop3.b32":
            a, b, c, table = terms
            result = np.zeros_like(a)
            for case in range(8):
                chosen = [term if case >> bit & 1 else ~term for term, bit in ((a, 2), (b, 1), (c, 0))]
                if int(table[0]) >> case & 1:
                    result |= chosen[0] & chosen[1] & chosen[2]
        else:
            assert name in ("add.rn.f16x2", "fma.rn.f16x2")
            exact = [halves(term).astype(np.float64) for term in terms]
            sums = exact[0] + exact[1] if name.startswith("add") else exact[0] * exact[1] + exact[2]
            result = sums.astype("<f2").reshape(-1).view("<u4")
        registers[target] = result
    return [registers[f"${i}"] for i in range(outputs)]


def every_byte() -> tuple[Pairs, np.ndarray]:
    """Pairs of words, and their bytes [words, 2]: every byte at every place."""
    data = np.arange(256, dtype=np.uint8)
    data = np.stack([data, data[::-1], np.roll(data, 77), np.roll(data, 150)], 1)
    return data.reshape(-1).view("<u4"), data.reshape(-1, 2)


def expected_planes(data: np.ndarray, bits: int) -> list[np.ndarray]:
    if bits == 8:
        return [data[:, i].view(np.int8).astype(np.float64) for i in (0, 1)]
    return [(data[:, i] >> shift & 15) - 8.0 for shift in (0, 4) for i in (0, 1)]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("made", ["RAISED", "CODES", "NUMBERS"])
def test_planes_are_what_they_are_said_to_be(bits: int, made: str) -> None:
    words, data = every_byte()
    assembly = getattr(codes_triton, f"{made}_{'OF_' if made != 'RAISED' else ''}{bits}").value
    scale, middle = np.float16(0.37), np.float16(-11.3)
    inputs = [words]
    if made == "NUMBERS":
        for number in (scale, middle):
            inputs.append(np.full_like(words, int(number.view(np.uint16)) * 0x10001))
    expected = expected_planes(data, bits)
    for i, found in enumerate(carry_out(assembly, inputs, len(expected))):
        plane = expected[i]
        if made == "RAISED":
            plane = plane + 1152 if bits == 8 else plane + 1032 if i < 2 else 16 * (plane + 72)
        elif made == "NUMBERS":
            plane = (plane / 2 * np.float64(scale) + np.float64(middle)).astype(np.float16).astype(np.float64)
        assert np.array_equal(halves(found).reshape(-1).astype(np.float64), plane)
