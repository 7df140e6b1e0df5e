"""A plain, careful PyTorch loop: parties one after the other, no optimizer objects, fused updates."""

from peer import Meter, Work, arguments

meter = Meter()

import torch  # noqa: E402
from torch_models import export, load, local_sgd, make, tensors  # noqa: E402

meter.mark("import")


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    work = Work(args.work)
    facts = work.facts
    x, y = tensors(work.x, work.y, facts)
    model = load(make(facts), work.first)
    trained = [p for p in model.parameters() if p.requires_grad]
    shared = [p.detach().clone() for p in trained]
    meter.mark("data")
    for t, cohort in enumerate(work.cohorts):
        total, weight = [torch.zeros_like(p) for p in shared], float(work.length[cohort].sum())
        for k in cohort:
            with torch.no_grad():
                torch._foreach_copy_(trained, shared)
            rows = slice(int(work.offset[k]), int(work.offset[k] + work.length[k]))
            local_sgd(model, x[rows], y[rows], facts)
            with torch.no_grad():
                torch._foreach_add_(total, trained, alpha=float(work.length[k]) / weight)
        shared = total
        meter.round_done(t + 1, len(work.cohorts))
    with torch.no_grad():
        torch._foreach_copy_(trained, shared)
    meter.write(args.out, export(model), torch=torch.__version__)


if __name__ == "__main__":
    main()
