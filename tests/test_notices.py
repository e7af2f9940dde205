import inspect
import types
import warnings

from polaformer.notices import warn_user


def test_warning_names_the_line_that_called_the_package():
    """Through functions of the package with one of another package, as Lightning's hooks are, in between."""

    def function_of(module: str, calls) -> types.FunctionType:
        namespace = {"__name__": module, "calls": calls}
        exec("def function():\n    calls()\n", namespace)
        return namespace["function"]

    inner = function_of("polaformer.data.folders", lambda: warn_user("no images of 'cat'"))
    outer = function_of("polaformer.runs.fit", function_of("pytorch_lightning.trainer", inner))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = inspect.currentframe().f_lineno + 1
        outer()
    (warning,) = caught
    assert (str(warning.message), warning.filename, warning.lineno) == ("no images of 'cat'", __file__, line)
