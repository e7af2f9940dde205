import json
from datetime import datetime, timedelta, timezone

import torch

import polaformer
from polaformer.bench import describe_machine


def test_names_all_that_a_time_depends_on():
    machine = describe_machine()
    assert machine == json.loads(json.dumps(machine))
    assert machine["cpu"]
    assert machine["cores"] >= 1
    assert machine["threads"] == torch.get_num_threads()
    assert machine["versions"]["torch"] == torch.__version__
    assert machine["versions"]["polaformer"] == polaformer.__version__
    age = datetime.now(timezone.utc) - datetime.fromisoformat(machine["date"])
    assert timedelta(0) <= age < timedelta(minutes=1)
