//! Exports of a real run: every number of its events is exported, results do not change, and what
//! cannot start is a warning.

use lockstep_harness::recipes::LLAMA;
use lockstep_harness::runs::{Outcome, Runs};
use lockstep_platform::Stream;
use lockstep_telemetry::{Event, Stamped, load_events, visit_scalars};
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

const LONG: Duration = Duration::from_mins(1);

const COMMON: [&str; 4] =
    ["run.workers=2", "train.steps=6", "train.eval_every=3", "checkpoint.every=3"];

fn events(runs: &Runs, outcome: &Outcome) -> Vec<Stamped> {
    load_events(runs.world(), &outcome.dir.join("events.jsonl")).expect("events")
}

/// The rows of these events, from the list of metrics.
fn rows(events: &[Stamped]) -> String {
    let mut text = "step,seconds,metric,value\n".to_owned();
    for stamped in events {
        visit_scalars(&stamped.event, &mut |scalar| {
            let mut tag = String::new();
            scalar.write_tag(&mut tag);
            let (step, seconds, value) = (scalar.step, stamped.seconds, scalar.value);
            writeln!(text, "{step},{seconds},{tag},{value}").expect("text");
        });
    }
    text
}

/// A request with its head, which has the length of its body.
fn read_request(stream: &mut dyn Stream) -> String {
    let (mut request, mut block) = (Vec::new(), [0; 4096]);
    loop {
        let len = stream.read(&mut block).expect("a request");
        assert!(len > 0, "the request is whole");
        request.extend_from_slice(&block[..len]);
        let text = String::from_utf8_lossy(&request);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let len = head.split("Content-Length: ").nth(1).and_then(|rest| rest.lines().next());
        if len.expect("a length").parse() == Ok(body.len()) {
            return text.into_owned();
        }
    }
}

#[test]
fn exports_have_every_number_and_change_no_bit() {
    let mut runs = Runs::new("exports");
    let plain = runs.finish(&LLAMA.with(&COMMON));
    let sets = [
        "telemetry.csv=true",
        "telemetry.tensorboard=true",
        "telemetry.trace=true",
        "telemetry.trace_every=1",
        "telemetry.prometheus=127.0.0.1:0",
        "telemetry.histograms_every=4",
        "telemetry.noise_scale=2",
    ];
    let exported = runs.finish(&LLAMA.with(&[&COMMON[..], &sets].concat()));
    assert_eq!(exported.hashes(), plain.hashes());
    assert_eq!(exported.summary.recipe_hash, plain.summary.recipe_hash);
    let recorded = events(&runs, &exported);
    let csv = runs.world().files().read_to_string(&exported.dir.join("metrics.csv"));
    assert_eq!(csv.expect("a file"), rows(&recorded));
    let bytes: Vec<_> = recorded
        .iter()
        .filter_map(|stamped| match stamped.event {
            Event::Resources { data_bytes, resident_bytes, .. } => {
                Some((data_bytes, resident_bytes > 0))
            }
            _ => None,
        })
        .collect();
    let sent = exported.summary.wire_bytes_by_rank[0];
    assert_eq!(bytes, [(sent, true); 6], "rank 0 sends alike in every step");
    let folder = runs.world().files().list(&exported.dir.join("tensorboard")).expect("a folder");
    assert_eq!(folder.len(), 1);
    assert!(events(&runs, &plain).iter().all(|it| !matches!(it.event, Event::Resources { .. })));
}

#[test]
fn a_collector_receives_a_run_and_a_taken_port_is_a_warning() {
    let mut runs = Runs::new("exports");
    let world = runs.world().clone();
    let listener = world.net().listen("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr();
    let sets = [format!("telemetry.otlp=http://{addr}"), format!("telemetry.prometheus={addr}")];
    let sets: Vec<&str> = COMMON.iter().copied().chain(sets.iter().map(String::as_str)).collect();
    let recipe = LLAMA.with(&sets);
    let received = std::thread::scope(|scope| {
        let collector = scope.spawn(move || {
            let mut received = String::new();
            // The last step is in the last post.
            while !received.contains("\"intValue\":\"6\"") {
                let mut stream = listener.accept(LONG).expect("a post");
                stream.set_deadline(Some(LONG));
                received.push_str(&read_request(&mut *stream));
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").expect("an answer");
            }
            received
        });
        let outcome = runs.finish(&recipe);
        let warnings: Vec<_> = events(&runs, &outcome)
            .into_iter()
            .filter_map(|stamped| match stamped.event {
                Event::Warning { message } => Some(message),
                _ => None,
            })
            .collect();
        let expected = format!("cannot write events to Prometheus at {addr}: cannot listen on ");
        assert!(warnings.iter().any(|message| message.starts_with(&expected)), "{warnings:?}");
        collector.join().expect("the collector ends")
    });
    assert!(received.starts_with("POST /v1/metrics HTTP/1.1\r\n"));
    for name in ["lockstep.train.loss", "lockstep.bytes.data", "lockstep.validation.loss"] {
        assert!(received.contains(&format!("\"name\":\"{name}\"")), "{name}");
    }
}

/// Step, kind and tensor of every histogram, with its counts and its extremes.
type Histograms = Vec<((u64, String, String), Vec<u64>, [f64; 2])>;

fn histograms(events: &[Stamped]) -> Histograms {
    let of_event = |stamped: &Stamped| match &stamped.event {
        Event::Histogram { step, of, tensor, values } => {
            let at = (*step, of.clone(), tensor.clone());
            Some((at, values.counts.clone(), [values.min, values.max]))
        }
        _ => None,
    };
    events.iter().filter_map(of_event).collect()
}

#[test]
fn every_layout_has_the_same_histograms_and_the_counters_of_all_its_ranks() {
    let mut runs = Runs::new("exports");
    let common = [
        "train.steps=4",
        "train.eval_every=2",
        "train.eval_batches=1",
        "telemetry.histograms_every=2",
        "numerics.invariant_tensor_up_to=2",
    ];
    let layouts: [&[&str]; 4] = [
        &["run.workers=1"],
        &["run.workers=2", "parallel.zero=3"],
        &["run.workers=3", "parallel.zero=1"],
        &["run.workers=4", "parallel.tensor=2", "parallel.pipeline=2"],
    ];
    let mut expected = Histograms::new();
    for layout in layouts {
        let recipe = LLAMA.with(&[&common[..], layout].concat());
        let outcome = runs.finish(&recipe);
        let recorded = events(&runs, &outcome);
        let found = histograms(&recorded);
        if expected.is_empty() {
            let of_step = |kind: &str| -> u64 {
                let of_kind =
                    found.iter().filter(|((step, of, _), ..)| (*step, &**of) == (2, kind));
                of_kind.flat_map(|(_, counts, _)| counts).sum()
            };
            assert_eq!(of_step("weights"), outcome.summary.num_params);
            assert_eq!(of_step("gradients"), outcome.summary.num_params);
            expected.clone_from(&found);
        }
        assert_eq!(found, expected, "{layout:?}");
        let mut sent = vec![Vec::new(); recipe.run.workers];
        for stamped in &recorded {
            if let Event::RankCounters {
                step,
                worker,
                data_bytes,
                pipeline_bytes,
                tensor_bytes,
                resident_bytes,
                busy_share,
                ..
            } = stamped.event
            {
                sent[worker].push((step, data_bytes + pipeline_bytes + tensor_bytes));
                assert!(resident_bytes > Some(0) && busy_share > Some(0.0), "{layout:?}");
            }
        }
        let by_rank = outcome.summary.wire_bytes_by_rank.iter();
        let of_rank = |bytes: &u64| vec![(2, 2 * bytes), (4, 4 * bytes)];
        assert_eq!(sent, by_rank.map(of_rank).collect::<Vec<_>>(), "{layout:?}");
    }
}
