//! Workers and parallelism: valid layouts and the messages of invalid ones.

use lockstep_config::units::{Bytes, BytesPerSecond};
use lockstep_config::{
    CollectiveAlgorithm, CollectiveOp, DeviceChoice, Isolation, Partition, PipelineSchedule,
    Recipe, Recompute, Reduction, Sources, TransportChoice, resolve,
};
use std::time::Duration;

fn with(sets: &[&str]) -> Result<Recipe, String> {
    let sets = sets.iter().map(|argument| (*argument).to_owned()).collect();
    // A preset outlives a change of the defaults.
    let preset = Some("bible-small".to_owned());
    let sources = Sources { sets, preset, ..Sources::default() };
    resolve(&sources).map_err(|errors| errors.to_string())
}

fn recipe(sets: &[&str]) -> Recipe {
    with(sets).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(sets: &[&str]) -> String {
    with(sets).map_or_else(|errors| errors, |recipe| panic!("resolved:\n{}", recipe.to_toml()))
}

#[test]
fn every_layout_key_sets_its_field() {
    let recipe = recipe(&[
        "run.workers=3",
        "run.isolation=threads",
        "run.device=cuda:007",
        "run.transport=tcp",
        "run.encrypt=true",
        "run.deadline=2.5",
        "run.check_replicas_every=7",
        "parallel.data=3",
        "parallel.zero=1",
        "parallel.recompute=every-3",
        "parallel.bucket_bytes=4MiB",
        "parallel.overlap=false",
        "parallel.leaf_shares=4,3,1",
        "train.reduction=sum",
        "train.max_skipped=2",
        "emulate.bandwidth=100MB",
    ]);
    let (run, parallel) = (&recipe.run, &recipe.parallel);
    assert_eq!((run.workers, run.isolation), (3, Isolation::Threads));
    assert_eq!(run.device, DeviceChoice::Cuda(Some(7)));
    assert_eq!(
        (run.transport, run.deadline()),
        (TransportChoice::Tcp, Duration::from_millis(2500))
    );
    assert_eq!((run.encrypt, run.check_replicas_every), (true, 7));
    assert_eq!((parallel.data, parallel.zero, parallel.overlap), (3, 1, false));
    assert_eq!(parallel.recompute, Recompute::Every(3));
    assert_eq!(parallel.bucket_bytes, Bytes(4 << 20));
    assert_eq!((&parallel.leaf_shares, recipe.leaf_shares()), (&vec![4, 3, 1], vec![4, 3, 1]));
    assert_eq!((recipe.train.reduction, recipe.train.max_skipped), (Reduction::Sum, 2));
    assert_eq!(recipe.emulate.default_link.bandwidth, BytesPerSecond(1e8));
}

#[test]
fn workers_and_parallelism_leave_the_identity() {
    let plain = recipe(&[]);
    let other = recipe(&[
        "run.workers=4",
        "run.transport=tcp",
        "run.deadline=5",
        "parallel.zero=1",
        "parallel.recompute=full",
        "parallel.leaf_shares=5,1,1,1",
        "emulate.bandwidth=1000",
    ]);
    assert_eq!(other.identity_text(), plain.identity_text());
    assert_ne!(recipe(&["train.reduction=sum"]).hash(), plain.hash());
    assert_ne!(recipe(&["train.max_skipped=1"]).hash(), plain.hash());
}

#[test]
fn leaves_divide_evenly_with_the_remainder_first() {
    let shares = |workers: usize| recipe(&[&format!("run.workers={workers}")]).leaf_shares();
    assert_eq!(shares(1), [8]);
    assert_eq!(shares(3), [3, 3, 2]);
    assert_eq!(shares(5), [2, 2, 2, 1, 1]);
    assert_eq!(shares(8), [1; 8]);
}

#[test]
fn two_workers_are_the_default_where_there_are_two_leaves() {
    assert_eq!(recipe(&[]).run.workers, 2);
    let one = recipe(&["numerics.invariant_up_to=1"]);
    assert_eq!((one.run.workers, one.parallel.data), (1, 1));
}

#[test]
fn threads_divide_the_cores_among_the_workers_of_a_host() {
    let auto = recipe(&[]).run;
    assert_eq!((auto.num_threads(8, 2), auto.num_threads(7, 2)), (4, 3));
    assert_eq!(auto.num_threads(2, 8), 1, "at least one thread");
    assert_eq!(recipe(&["run.threads=3"]).run.num_threads(8, 4), 3, "an explicit number is kept");
}

#[test]
fn more_workers_than_leaves_are_refused() {
    assert_eq!(
        errors(&["run.workers=9"]),
        "run.workers = 9 is more than numerics.invariant_up_to = 8; try 8",
        "eight micro-batches cannot fill sixteen leaves"
    );
    assert_eq!(
        errors(&["run.workers=9", "train.batch=32"]),
        "run.workers = 9 is more than numerics.invariant_up_to = 8; \
         try 8 or numerics.invariant_up_to = 16"
    );
    assert_eq!(
        errors(&["run.workers=2", "numerics.invariant_up_to=1"]),
        "run.workers = 2 is more than numerics.invariant_up_to = 1; \
         try 1 or numerics.invariant_up_to = 2"
    );
    assert_eq!(errors(&["run.workers=0"]), "run.workers = 0 must be between 1 and 64; try 1");
    assert_eq!(errors(&["run.workers=65"]), "run.workers = 65 must be between 1 and 64; try 64");
    let text = errors(&["run.workers=many"]);
    assert!(text.contains("is text where an integer, or a table in braces, is needed"), "{text}");
}

#[test]
fn the_fix_of_the_batch_keeps_enough_leaves() {
    assert_eq!(
        errors(&["train.batch=4", "run.workers=4"]),
        "train.batch = 4 makes 2 micro-batches of train.microbatch = 2, \
         which numerics.invariant_up_to = 8 does not divide; try train.batch = 16"
    );
}

#[test]
fn a_transport_that_does_not_fit_the_isolation_is_refused() {
    assert_eq!(
        errors(&["run.transport=threads"]),
        "run.transport = \"threads\" does not connect workers with run.isolation = \"processes\"; \
         try \"auto\" or run.isolation = \"threads\""
    );
    assert_eq!(
        errors(&["run.isolation=threads", "run.transport=shm"]),
        "run.transport = \"shm\" does not connect workers with run.isolation = \"threads\"; \
         try \"auto\" or run.isolation = \"processes\""
    );
    for sets in [
        ["run.isolation=threads", "run.transport=auto"],
        ["run.isolation=threads", "run.transport=threads"],
        ["run.isolation=threads", "run.transport=tcp"],
        ["run.isolation=processes", "run.transport=shm"],
        ["run.isolation=processes", "run.transport=tcp"],
    ] {
        assert!(with(&sets).is_ok(), "{sets:?}");
    }
}

#[test]
fn the_data_axis_has_all_workers() {
    assert_eq!(
        errors(&["run.workers=4", "parallel.data=2"]),
        "parallel.data = 2 is not run.workers = 4; try 4 or run.workers = 2"
    );
    assert_eq!(
        errors(&["run.workers=16", "parallel.data=16"]),
        "run.workers = 16 is more than numerics.invariant_up_to = 8; try 8\n\
         parallel.data = 16 is more than numerics.invariant_up_to = 8; try 8"
    );
}

#[test]
fn leaf_shares_are_one_number_per_replica_and_add_up() {
    assert_eq!(
        errors(&["run.workers=2", "parallel.leaf_shares=4,2,2"]),
        "parallel.leaf_shares = \"4,2,2\" has 3 numbers for run.workers = 2; try \"4,4\""
    );
    assert_eq!(
        errors(&["run.workers=3", "parallel.leaf_shares=8"]),
        "parallel.leaf_shares = \"8\" has 1 number for run.workers = 3; try \"3,3,2\""
    );
    assert_eq!(
        errors(&["run.workers=2", "parallel.leaf_shares=5,2"]),
        "parallel.leaf_shares = \"5,2\" makes 7 leaves where numerics.invariant_up_to = 8; \
         try \"4,4\""
    );
    let enormous = format!("parallel.leaf_shares={0},{0}", usize::MAX);
    assert!(errors(&["run.workers=2", &enormous]).contains("leaves where"));
    assert_eq!(
        errors(&["run.workers=2", "parallel.leaf_shares=5,three"]),
        "parallel.leaf_shares = \"5,three\" is not a list of integers from 1, such as \"5,3\"; \
         try \"\""
    );
    for zero in [2, 3] {
        assert_eq!(
            errors(&[
                "run.workers=2",
                "parallel.leaf_shares=5,3",
                &format!("parallel.zero={zero}")
            ]),
            format!(
                "parallel.leaf_shares = \"5,3\" is not supported with parallel.zero = \
                 {zero}, which assigns leaves in turn; try \"\" or parallel.zero = 1"
            )
        );
    }
}

#[test]
fn automatic_recomputation_is_kept_until_it_is_chosen() {
    let recipe = recipe(&["parallel.recompute=auto"]);
    assert_eq!(
        (recipe.parallel.recompute, recipe.parallel.recompute_is_auto),
        (Recompute::None, true)
    );
    assert!(recipe.to_toml().contains("recompute = \"auto\"\n"));
    assert_eq!(recipe.hash(), self::recipe(&[]).hash(), "it changes no bit");
    let chosen = self::recipe(&["parallel.recompute=full"]).parallel;
    assert_eq!((chosen.recompute, chosen.recompute_is_auto), (Recompute::Full, false));
}

#[test]
fn offload_of_activations_changes_no_bit_and_may_be_automatic() {
    use lockstep_config::OffloadActivations::{Host, None};
    for (value, place, is_auto) in
        [("none", None, false), ("host", Host, false), ("auto", None, true)]
    {
        let recipe = recipe(&[&format!("offload.activations={value}")]);
        let offload = &recipe.offload;
        assert_eq!((offload.activations, offload.activations_is_auto), (place, is_auto));
        assert!(recipe.to_toml().contains(&format!("activations = \"{value}\"\n")));
        assert_eq!(recipe.hash(), self::recipe(&[]).hash(), "it changes no bit");
    }
}

#[test]
fn layout_values_are_checked() {
    for (argument, message) in [
        ("parallel.zero=4", "parallel.zero = 4 must be between 0 and 3; try 3"),
        (
            "parallel.recompute=every-0",
            "parallel.recompute = \"every-0\" is not one of none, selective, full, auto, every-K; \
             try \"every-2\"",
        ),
        (
            "parallel.recompute=selectiv",
            "parallel.recompute = \"selectiv\" is not one of none, selective, full, auto, every-K; \
             try \"selective\"",
        ),
        (
            "parallel.bucket_bytes=4 parsecs",
            "parallel.bucket_bytes = \"4 parsecs\" is not a number of bytes; try \"4MiB\"",
        ),
        ("run.deadline=0", "run.deadline = 0 must be above 0 and at most 86400; try 60.0"),
        (
            "run.isolation=thread",
            "run.isolation = \"thread\" is not one of processes, threads; try \"threads\"",
        ),
        (
            "run.device=gpu",
            "run.device = \"gpu\" is not one of auto, cpu, cuda, cuda:N; try \"cuda\"",
        ),
        (
            "run.device=cuda1",
            "run.device = \"cuda1\" is not one of auto, cpu, cuda, cuda:N; try \"cuda:1\"",
        ),
        (
            "run.device=cuda:x",
            "run.device = \"cuda:x\" is not one of auto, cpu, cuda, cuda:N; try \"cuda:0\"",
        ),
        (
            "run.device=mps",
            "run.device = \"mps\" is not one of auto, cpu, cuda, cuda:N; try \"auto\"",
        ),
        ("run.device=0", "run.device = \"0\" is not one of auto, cpu, cuda, cuda:N; try \"auto\""),
        ("train.reduction=avg", "train.reduction = \"avg\" is not one of mean, sum; try \"mean\""),
        (
            "emulate.bandwidth=1000",
            "emulate.bandwidth = 1000 is not a setting of run.transport = \"auto\"; \
             remove it or set run.transport = \"tcp\"",
        ),
    ] {
        assert_eq!(errors(&[argument]), message);
    }
}

#[test]
fn algorithms_of_collectives_are_entries_by_operation_and_size() {
    let text = r#"parallel.collectives=[{op="all-gather", algorithm="ring", channels=4,
        min_bytes="1MiB", max_bytes=4194304}, {op="all-reduce", algorithm="tree"}]"#;
    let found = recipe(&[&text.replace('\n', " ")]);
    let [ring, tree] = found.parallel.collectives[..] else { panic!("two entries") };
    assert_eq!((ring.op, ring.algorithm), (CollectiveOp::AllGather, CollectiveAlgorithm::Ring));
    assert_eq!((ring.channels, ring.min_bytes), (4, Bytes(1 << 20)));
    let fits = |bytes| ring.applies_to(CollectiveOp::AllGather, Bytes(bytes));
    assert_eq!(
        [(1 << 20) - 1, 1 << 20, 4 << 20, (4 << 20) + 1].map(fits),
        [false, true, true, false]
    );
    assert_eq!((tree.channels, tree.min_bytes, tree.max_bytes), (1, Bytes(0), None));
    assert_eq!(found.hash(), recipe(&[]).hash(), "sums keep their order");
    let reread = Sources { file: Some(("a".to_owned(), found.to_toml())), ..Sources::default() };
    assert_eq!(resolve(&reread).expect("it resolved before"), found);
    assert_eq!(
        errors(&[r#"parallel.collectives=[{op="all-reduce", algorithm="tree", channels=2}]"#]),
        "parallel.collectives[0].channels = 2 is not supported with algorithm = \"tree\"; try 1, \
         or algorithm = \"ring\""
    );
    let range = r#"[{op="all-reduce", algorithm="tree", min_bytes=9, max_bytes=8}]"#;
    assert_eq!(
        errors(&[&format!("parallel.collectives={range}")]),
        "parallel.collectives[0].max_bytes = 8 is less than min_bytes = 9; try 9"
    );
    let unknown = errors(&[r#"parallel.collectives=[{op="all-reduce", algorithm="star"}]"#]);
    assert!(unknown.contains("algorithm = \"star\""), "{unknown}");
}

#[test]
fn every_pipeline_key_sets_its_field() {
    let sets = ["run.workers=6", "parallel.pipeline=3", "parallel.stage_layers=2,1,1"];
    let parallel = recipe(&sets).parallel;
    assert_eq!((parallel.pipeline, parallel.data, parallel.num_stages()), (3, 2, 3));
    assert_eq!(
        (parallel.schedule, &parallel.stage_layers),
        (PipelineSchedule::OneFOneB, &vec![2, 1, 1])
    );
    let chunks = recipe(&["parallel.pipeline=2", "parallel.virtual_stages=3"]);
    assert_eq!(chunks.parallel.schedule, PipelineSchedule::Interleaved);
    assert_eq!((chunks.parallel.data, chunks.leaf_shares()), (1, vec![8]));
    assert_eq!(chunks.identity_text(), recipe(&[]).identity_text());
    let measured = recipe(&["parallel.pipeline=2", "parallel.partition=measured"]);
    assert_eq!(measured.parallel.partition, Partition::Measured);
    assert_eq!(measured.identity_text(), recipe(&[]).identity_text());
    let more = ["run.workers=16", "parallel.pipeline=2", "parallel.schedule=zero-bubble"];
    assert_eq!(recipe(&more).leaf_shares(), [1; 8], "as many replicas as leaves");
}

#[test]
fn invalid_pipelines_are_refused_with_the_nearest_valid_one() {
    for (sets, message) in [
        (
            &["run.workers=4", "parallel.pipeline=3"][..],
            "parallel.pipeline = 3 does not divide run.workers = 4; \
             try 1, 2 or 4, or run.workers = 3 or 6",
        ),
        (
            &["run.workers=4", "parallel.pipeline=2", "parallel.data=4"],
            "parallel.data = 4 times parallel.pipeline = 2 is not run.workers = 4; \
             try 2 or run.workers = 8",
        ),
        (
            &["run.workers=32", "parallel.pipeline=2"],
            "run.workers = 32 makes 16 replicas of 2 workers each, \
             more than numerics.invariant_up_to = 8; try 16",
        ),
        (
            &["run.workers=8", "parallel.pipeline=8"],
            "parallel.pipeline = 8 makes 8 stages, more than the 6 blocks of \
             model.layers = 4; try 4 or model.layers = 6",
        ),
        (
            &["parallel.pipeline=2", "parallel.virtual_stages=4"],
            "parallel.virtual_stages = 4 makes 8 stages, more than the 6 blocks of \
             model.layers = 4; try 3 or model.layers = 6",
        ),
        (
            &["parallel.pipeline=2", "parallel.stage_layers=3,1", "parallel.partition=measured"],
            "parallel.partition = \"measured\" has no effect with parallel.stage_layers = \
             \"3,1\"; try \"flops\" or parallel.stage_layers = \"\"",
        ),
        (
            &["parallel.pipeline=2", "parallel.virtual_stages=2", "parallel.schedule=1f1b"],
            "parallel.virtual_stages = 2 needs an interleaved schedule, and parallel.schedule = \
             \"1f1b\"; try 1 or parallel.schedule = \"interleaved\"",
        ),
        (
            &["parallel.pipeline=2", "parallel.stage_layers=1,1,2"],
            "parallel.stage_layers = \"1,1,2\" has 3 numbers for 2 stages; try \"2,2\"",
        ),
        (
            &["parallel.pipeline=2", "parallel.stage_layers=1,4"],
            "parallel.stage_layers = \"1,4\" makes 5 layers where model.layers = 4; try \"2,2\"",
        ),
        (
            &["run.workers=6", "parallel.pipeline=2", "parallel.leaf_shares=4,4"],
            "parallel.leaf_shares = \"4,4\" has 2 numbers for 3 replicas of 2 workers each; try \
             \"3,3,2\"",
        ),
        (
            &["model.family=mlp", "parallel.pipeline=2"],
            "parallel.pipeline = 2 divides layers, which model.family = \"mlp\" does not have; \
             try 1",
        ),
    ] {
        assert_eq!(errors(sets), message);
    }
}
