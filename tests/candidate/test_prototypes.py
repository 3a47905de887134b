from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.candidate.prototypes import POINTEES, SCALARS, Parameter, read_launchers
from cuda_agent.errors import CandidateError


def one(source: str) -> tuple[Parameter, ...]:
    (launcher,) = read_launchers(source, "kernels/k.cu")
    return launcher.parameters


def names(source: str) -> list[str]:
    return [launcher.name for launcher in read_launchers(source, "kernels/k.cu")]


@pytest.mark.parametrize(
    ("written", "type", "pointer"),
    [
        ("const float* x", "float", True),
        ("float const * const __restrict__ x", "float", True),
        ("double *x", "double", True),
        ("__half* x", "__half", True),
        ("const __nv_bfloat16* __restrict__ x", "__nv_bfloat16", True),
        ("std::int64_t* x", "int64_t", True),
        ("::std::uint8_t* x", "uint8_t", True),
        ("unsigned char* x", "uint8_t", True),
        ("float x[]", "float", True),
        ("const int x[4]", "int32_t", True),
        ("void* x", "void", True),
        ("int x", "int32_t", False),
        ("unsigned x", "uint32_t", False),
        ("long long int x", "int64_t", False),
        ("unsigned long long x", "uint64_t", False),
        ("long x", "int64_t", False),
        ("size_t x", "uint64_t", False),
        ("const bool x", "bool", False),
        ("char x", "int8_t", False),
        ("unsigned short int x", "uint16_t", False),
    ],
)
def test_types_are_normalised(written: str, type: str, pointer: bool) -> None:
    assert one(f'extern "C" void f({written}) {{}}') == (Parameter("x", type, pointer),)


def test_both_spellings_of_c_linkage() -> None:
    assert names('extern "C" void f() {}\nextern "C" { void g(int a) { if (a) { } } int h(void) { return 0; } }') == [
        "f",
        "g",
        "h",
    ]


def test_what_is_not_exported_or_has_no_body_is_no_launcher() -> None:
    source = """
        extern "C" void declared(struct thing* x);
        extern "C" __global__ void kernel(float* x) {}
        extern "C" { static int helper(int a) { return a; } inline void inlined() {} int global = 3;
                     struct s { int a; }; typedef int number; extern int other; }
        template <int N> __global__ void templated(float* x) {}
        void cpp_linkage(float* x) {}
    """
    assert names(source) == []


def test_comments_strings_macros_and_dead_code_are_skipped() -> None:
    source = r"""
        // extern "C" void a() {}
        /* extern "C" void b() { */
        #define LAUNCHER(name) extern "C" void name() { \
            }
        const char* s = "extern \"C\" void c() {";
        const char* r = R"x(extern "C" void d() { )" )x";
        const char q = '"';
        #if 0
        extern "C" void e() {
        # ifdef X
        # endif
        #else
        extern "C" void live() { char c = '}'; }
        #endif
        extern "C" /* here */ void // there
            also_live(int /* not b */ a) {}
    """
    assert names(source) == ["live", "also_live"]


def test_guards_around_the_block() -> None:
    source = (
        '#ifdef __cplusplus\nextern "C" {\n#endif\nvoid f(float* x) { x[0] = 1\'000; }\n#ifdef __cplusplus\n}\n#endif\n'
    )
    assert names(source) == ["f"]


def test_line_and_prototype_are_kept() -> None:
    (launcher,) = read_launchers('\n\nextern "C" void\nscale(const float * x,\n float s) {}', "kernels/k.cu")
    assert (launcher.line, launcher.text) == (4, "void scale(const float* x, float s)")


def test_attributes_say_nothing_about_the_abi() -> None:
    assert names('extern "C" __attribute__((visibility("default"))) [[gnu::used]] __host__ void f() {}') == ["f"]


def test_the_stream_is_supplied() -> None:
    for written in ("cudaStream_t stream", "cudaStream_t s", "void* stream"):
        (launcher,) = read_launchers(f'extern "C" int f(float* x, {written}) {{}}', "k.cu")
        assert [p.name for p in launcher.arguments] == ["x"] and launcher.returns_status


def test_default_arguments() -> None:
    parameters = one(
        'extern "C" void f(float* x = nullptr, int n = 4, float eps = 1e-5f, bool b = true, cudaStream_t s) {}'
    )
    assert [p.default for p in parameters] == ["None", "4", "1e-5", "True", None]


def test_names_that_python_cannot_take_get_an_underscore() -> None:
    parameters = one('extern "C" void f(float* lambda, int, float in) {}')
    assert [p.name for p in parameters] == ["lambda_", "arg1", "in_"]


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ("const Shape s", "cannot be passed by value"),
        ("struct Shape* s", "no plain number"),
        ("float& x", "is a reference"),
        ("float** x", "pointer to pointers"),
        ("float* x[2]", "pointer to pointers"),
        ("Half* x", "no torch dtype"),
        ("std::vector<int, A> x", "no plain number"),
        ("at::Tensor x", "no plain number"),
        ("void (*callback)(int)", "function pointer"),
        ("...", "variadic"),
        ("int n = sizeof(int)", "default that is not a number"),
        ("cudaStream_t stream, int n", "put it last"),
    ],
)
def test_what_cannot_be_bound_is_named_with_file_and_line(parameter: str, said: str) -> None:
    with pytest.raises(CandidateError, match=said) as caught:
        read_launchers(f'\nextern "C" void f(int a,\n  {parameter}) {{}}', "kernels/k.cu")
    assert str(caught.value).startswith("kernels/k.cu:3: f cannot be bound")


def test_other_results_are_refused() -> None:
    for result in ("float", "float*", "int64_t", "Status"):
        with pytest.raises(CandidateError, match="returns void, or int"):
            read_launchers(f'extern "C" {result} f() {{}}', "k.cu")


def test_two_definitions_must_agree() -> None:
    same = 'extern "C" void f(float* x) {}\n'
    assert names(f"#ifdef A\n{same}#else\n{same}#endif") == ["f"]
    with pytest.raises(CandidateError, match="defined again"):
        read_launchers(same + 'extern "C" void f(double* x) {}', "k.cu")


def test_unclosed_braces_are_named() -> None:
    with pytest.raises(CandidateError, match=r"k.cu:1: the '\{' is never closed"):
        read_launchers('extern "C" void f() {', "k.cu")


SPACE = st.sampled_from([" ", "\n", "\t", "/* a, b) { */", '// extern "C" {\n', " \\\n "])
PARAMETER = st.one_of(
    st.sampled_from(sorted(POINTEES)).map(lambda type: (type, True)),
    st.sampled_from(sorted(SCALARS)).map(lambda type: (type, False)),
)


@given(st.lists(PARAMETER, max_size=8), st.lists(SPACE, min_size=40, max_size=40))
def test_any_prototype_survives_any_spacing(wanted: list[tuple[str, bool]], spaces: list[str]) -> None:
    space = iter(spaces)
    parts = [f"const {type}{next(space)}{'*' if ptr else ''}{next(space)}p{i}" for i, (type, ptr) in enumerate(wanted)]
    source = f'extern{next(space)}"C"{next(space)}void f({f",{next(space)}".join(parts)}){next(space)}{{ return; }}'
    assert one(source) == tuple(Parameter(f"p{i}", type, ptr) for i, (type, ptr) in enumerate(wanted))


@given(st.text(alphabet="extrn\"C{}()*/#\\\n 'fR,;=[]<>&0xif", max_size=80))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        read_launchers(text, "k.cu")
    except CandidateError as error:
        assert str(error)
