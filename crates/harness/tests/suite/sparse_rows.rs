//! Sparse embedding rows with parameter servers: the bits of dense tables, the bytes of the
//! selected rows only, row cache and replicated rows.

use lockstep_config::Recipe;
use lockstep_harness::Runs;
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::runs::Outcome;
use lockstep_trainer::Options;

const SERVED: [&str; 3] = ["sync.mode=parameter-server", "sync.consistency=sync", "optim.clip=0"];

/// Zipf-distributed tokens of a vocabulary of a thousand; two workers.
fn zipf(sets: &[&str]) -> Recipe {
    let data = ["data.source=zipf", "model.vocab=1000", "model.context=32", "run.workers=2"];
    let train = [
        "train.batch=4",
        "train.microbatch=1",
        "numerics.invariant_up_to=4",
        "train.steps=6",
        "train.eval_batches=1",
    ];
    LLAMA.with(&[&data[..], &train, &SERVED, sets].concat())
}

fn pulled_and_pushed(outcome: &Outcome) -> [u64; 2] {
    let rows = &outcome.summary.asynchronous.rows;
    [rows.rows_pulled.expect("counted"), rows.rows_pushed.expect("counted")]
}

fn row_bytes(outcome: &Outcome) -> u64 {
    outcome.summary.asynchronous.rows.row_bytes_by_server.as_ref().expect("counted").iter().sum()
}

fn requests(outcome: &Outcome) -> u64 {
    outcome.summary.asynchronous.rows.row_requests_by_server.as_ref().expect("counted").iter().sum()
}

#[test]
fn synchronous_sparse_rows_equal_dense_tables_bit_for_bit() {
    let mut runs = Runs::new("sparse-rows");
    // The update of a row does not depend on how it is sent, also with momentum and Adam.
    for (optim, servers, by) in
        [("sgd", 1, "hash"), ("sgd", 3, "range"), ("momentum", 2, "hash"), ("adamw", 3, "hash")]
    {
        let sets = [format!("optim.name={optim}"), format!("sync.servers={servers}")];
        let sets = [sets[0].as_str(), sets[1].as_str()];
        let whole = runs.finish(&zipf(&sets));
        let by = format!("sync.row_sharding={by}");
        let rows = runs.finish(&zipf(&[&sets[..], &["sync.sparse_rows=true", &by]].concat()));
        assert_eq!(rows.hashes(), whole.hashes(), "{optim}, {servers}, {by}");
        assert!(rows.summary.wire_bytes < whole.summary.wire_bytes);
        // A cache whose rows expire after one step serves nothing.
        let every = ["sync.sparse_rows=true", &by, "sync.row_cache=100", "sync.row_cache_every=1"];
        let every = runs.finish(&zipf(&[&sets[..], &every].concat()));
        assert_eq!(every.hashes(), whole.hashes(), "{optim}, {servers}, {by}");
        assert_eq!(every.summary.asynchronous.rows.rows_cached, Some(0));
    }
}

#[test]
fn a_group_pulls_and_pushes_the_union_of_its_rows() {
    let mut runs = Runs::new("sparse-rows");
    let sets = ["sync.servers=2", "optim.name=adamw", "sync.group_workers=2"];
    let whole = runs.finish(&zipf(&sets));
    let rows = runs.finish(&zipf(&[&sets[..], &["sync.sparse_rows=true"]].concat()));
    assert_eq!(rows.hashes(), whole.hashes());
    let alone = runs.finish(&zipf(&[&sets[..2], &["sync.sparse_rows=true"]].concat()));
    assert_eq!(alone.hashes(), rows.hashes());
    // Rows of both workers are sent once.
    let ([together, _], [apart, _]) = (pulled_and_pushed(&rows), pulled_and_pushed(&alone));
    assert!(together < apart && 2 * together > apart, "{together} of {apart}");
}

#[test]
fn bytes_sent_are_those_of_the_selected_rows() {
    let mut runs = Runs::new("sparse-rows");
    let mut of = |context: &str, sparse: &str| {
        runs.finish(&zipf(&[context, sparse, "sync.servers=2", "optim.name=sgd"]))
    };
    let width = 4 * LLAMA.with::<&str>(&[]).model.width as u64;
    let mut selected = Vec::new();
    for context in ["model.context=16", "model.context=64"] {
        let (rows, whole) =
            (of(context, "sync.sparse_rows=true"), of(context, "sync.row_sharding=hash"));
        let [pulled, pushed] = pulled_and_pushed(&rows);
        assert_eq!(pulled, pushed, "{context}: every pulled row gets a gradient");
        // A row and its index in each direction; eight words a pull request, one a push.
        let steps = 6 * 2 * 2;
        let expected =
            (pulled + pushed) * (width + 4) + 8 * (8 * (requests(&rows) - steps) + steps);
        assert_eq!(row_bytes(&rows), expected, "{context}");
        // The difference to dense tables, over all ranks, is the table in both directions.
        let saved = 6 * 2 * 2 * 1000 * width - row_bytes(&rows);
        let all = |outcome: &Outcome| outcome.summary.wire_bytes_by_rank.iter().sum::<u64>();
        // The summary is per step.
        assert_eq!(6 * (all(&whole) - all(&rows)), saved, "{context}");
        selected.push(pulled);
    }
    assert!(selected[1] > selected[0] && selected[1] < 4 * selected[0], "{selected:?}");
}

#[test]
fn the_row_cache_saves_pulls_and_the_model_still_learns() {
    let mut runs = Runs::new("sparse-rows");
    let mut of = |more: &[&str]| {
        let usual = ["sync.sparse_rows=true", "sync.servers=2", "train.steps=24", "optim.name=sgd"];
        runs.finish(&zipf(&[&usual[..], more].concat()))
    };
    let plain = of(&[]);
    let kept = of(&["sync.row_cache=64", "sync.row_cache_every=8"]);
    let ([all, pushed], [less, also_pushed]) =
        (pulled_and_pushed(&plain), pulled_and_pushed(&kept));
    let hits = kept.summary.asynchronous.rows.rows_cached.expect("counted");
    assert_eq!((less + hits, also_pushed), (all, pushed), "every selected row is a pull or a hit");
    assert!(less < all * 3 / 4, "{less} of {all}");
    let age = kept.summary.asynchronous.rows.row_age_max.expect("counted");
    assert_eq!(age, 7, "a row pulled every eight steps misses at most seven updates");
    let last = |outcome: &Outcome| outcome.summary.validation_loss.expect("evaluated");
    assert!(last(&kept) < kept.summary.first_loss && last(&plain) < plain.summary.first_loss);
    assert!((last(&kept) - last(&plain)).abs() < 0.05, "{} {}", last(&kept), last(&plain));
}

#[test]
fn the_staleness_bound_holds_for_cached_rows() {
    let mut runs = Runs::new("sparse-rows");
    let bounded = ["sync.consistency=bounded", "sync.staleness=3", "sync.sparse_rows=true"];
    let cache = ["sync.row_cache=64", "sync.row_cache_every=1000"];
    let train = ["train.steps=24", "optim.name=sgd"];
    let outcome = runs.finish(&zipf(&[&bounded[..], &cache, &train].concat()));
    let rows = &outcome.summary.asynchronous.rows;
    assert!(rows.rows_cached.expect("counted") > 0 && rows.row_age_max.expect("counted") <= 3);
    assert!(outcome.summary.staleness_max <= 3);
}

#[test]
fn hash_sharding_balances_the_load_better_than_range_sharding() {
    let mut runs = Runs::new("sparse-rows");
    let mut of = |by: &str| {
        let sets = ["sync.sparse_rows=true", "sync.servers=4", "optim.name=sgd", by];
        runs.finish(&zipf(&sets)).summary.asynchronous.rows.row_imbalance.expect("counted")
    };
    let (hash, range) = (of("sync.row_sharding=hash"), of("sync.row_sharding=range"));
    assert!(range > 1.5 && hash < 1.35, "{range} and {hash}");
}

#[test]
fn replicated_rows_balance_the_load_and_change_no_bit_when_synchronous() {
    let mut runs = Runs::new("sparse-rows");
    let mut of = |more: &[&str]| {
        let usual = ["sync.sparse_rows=true", "sync.servers=2", "sync.row_sharding=range"];
        let eight = ["run.workers=8", "train.batch=8", "numerics.invariant_up_to=8"];
        let rest = ["train.steps=16", "optim.name=sgd"];
        runs.finish(&zipf(&[&usual[..], &eight, &rest, more].concat()))
    };
    let figure = |outcome: &Outcome| outcome.summary.asynchronous.rows.clone();
    let (plain, replicated) = (of(&[]), of(&["sync.replicated_rows=64"]));
    assert_eq!(replicated.hashes(), plain.hashes());
    let (before, after) = (figure(&plain), figure(&replicated));
    let (copied, age) = (after.rows_replicated.expect("counted"), after.row_age_max);
    assert_eq!((before.rows_replicated, age), (Some(0), Some(0)), "replicas have missed no update");
    assert_eq!(after.rows_pulled.map(|pulled| pulled + copied), before.rows_pulled);
    assert!(copied > 0, "{after:?}");
    let (before, after) = (before.row_imbalance, after.row_imbalance);
    assert!(after < before.map(|before| 0.9 * before), "{after:?} of {before:?}");
    // Asynchronously a replica may miss some updates: at most 32, or any of all 128, of which a
    // worker that the machine holds up for long misses most.
    let free = |age: &str| {
        let age = format!("sync.replicated_rows_age={age}");
        figure(&of(&["sync.consistency=async", "sync.replicated_rows=64", &age]))
    };
    let [bounded_age, any_age] = ["32", "128"].map(free);
    assert!(bounded_age.row_age_max.is_some_and(|age| age <= 32), "{bounded_age:?}");
    assert!(any_age.rows_replicated.is_some_and(|copied| copied > 0), "{any_age:?}");
    let bounded = ["sync.consistency=bounded", "sync.staleness=2", "sync.replicated_rows=64"];
    let bounded = figure(&of(&bounded));
    assert!(bounded.row_age_max.is_some_and(|age| age <= 2), "{bounded:?}");
}

#[test]
fn row_state_of_servers_survives_a_restart() {
    let mut runs = Runs::new("sparse-rows");
    let more = ["sync.sparse_rows=true", "sync.servers=2", "optim.name=adamw", "train.steps=10"];
    let recipe = zipf(&[&more[..], &["checkpoint.every=4"]].concat());
    let whole = runs.finish(&recipe);
    let options = Options { stop_after: Some(6), ..Options::default() };
    let part = runs.run(&recipe, options).expect("the first part");
    let resume = Some(part.dir.join("checkpoints"));
    let rest = runs.run(&recipe, Options { resume, ..Options::default() }).expect("the rest");
    assert_eq!(rest.losses.len(), 6, "from step 4 on");
    assert_eq!(rest.hashes(), whole.hashes());
}
