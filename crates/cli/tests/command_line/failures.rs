//! Workers killed or frozen during training: all others and the flight records name the same rank.

use crate::launch::{Running, send};
use crate::process::Folder;
use lockstep_conformance::cases::{Random, select_cases};
use lockstep_platform::real;
use std::time::Duration;

#[test]
fn a_killed_or_frozen_worker_is_named_by_all_ranks() {
    for seed in select_cases(&real(), 200, 5) {
        let mut random = Random(seed);
        let (transport, zero) = (["auto", "tcp"][random.below(2)], random.below(3));
        let workers = 2 + random.below(2);
        let victim = random.below(workers);
        let signal = ["-KILL", "-STOP"][random.below(2)];
        // A killed worker is noticed at once; a frozen one at the deadline.
        let deadline = if signal == "-STOP" { "run.deadline=2.5" } else { "run.deadline=20" };
        let case = format!("seed {seed}: {signal} rank {victim} of {workers}, {transport}, {zero}");
        let folder = Folder::new();
        let run = Running::start(
            &folder,
            &[
                deadline,
                "run.dir=failed",
                &format!("run.workers={workers}"),
                &format!("run.transport={transport}"),
                &format!("parallel.zero={zero}"),
            ],
        );
        real().clock().sleep(Duration::from_micros(random.below(60_000) as u64));
        send(signal, run.worker(victim));
        let (status, stderr) = run.end();
        assert_eq!(status.code(), Some(3), "{case}: {stderr}");
        assert_one_error(&stderr, victim, &case);

        let doctor = folder.run(&["doctor", "failed", "--json"]);
        assert_eq!(doctor.code, Some(0), "{case}: {}{stderr}", doctor.stderr);
        let report: serde_json::Value = serde_json::from_str(&doctor.stdout).expect("a JSON value");
        let verdicts = report["verdicts"].as_array().expect("a list");
        assert_eq!(verdicts.len(), 1, "{case}: {report}");
        assert_eq!(verdicts[0]["culprit"], victim, "{case}: {report}");
        let failure = report["run"]["failure"].as_str().expect("why the run failed");
        assert!(failure.contains(&format!("rank {victim}")), "{case}: {report}");
        let text = folder.succeed(&["doctor", "failed"]).stdout;
        assert!(text.contains(&format!("rank {victim}")), "{case}: {text}");
    }
}

/// Asserts that all workers print the same error, which names the victim.
fn assert_one_error(stderr: &str, victim: usize, case: &str) {
    let mut errors: Vec<&str> = stderr
        .lines()
        .filter_map(|line| line.split_once("error: "))
        .map(|(_, text)| match text.split_once(": ") {
            Some((rank, rest)) if rank.starts_with("rank ") && rank.len() < 8 => rest,
            _ => text,
        })
        .filter(|text| !text.contains("was killed by signal"))
        .collect();
    errors.sort_unstable();
    errors.dedup();
    assert_eq!(errors.len(), 1, "{case}: {stderr}");
    assert!(errors[0].contains(&format!("rank {victim}")), "{case}: {stderr}");
}

#[test]
fn a_folder_without_flight_records_is_refused() {
    let folder = Folder::new();
    folder.write("empty/notes.txt", b"nothing");
    let finished = folder.run(&["doctor", "empty"]);
    assert_eq!(finished.code, Some(2));
    assert!(finished.stderr.contains("has no flight-rank-N.json"), "{}", finished.stderr);
    folder.write("odd/flight-rank-0.json", b"{\"version\": 1}");
    let finished = folder.run(&["doctor", "odd"]);
    assert_eq!(finished.code, Some(2));
    assert!(finished.stderr.contains("not a flight record"), "{}", finished.stderr);
}

#[test]
fn without_a_folder_the_doctor_reads_the_newest_run() {
    let folder = Folder::new();
    let none = folder.run(&["doctor"]);
    assert_eq!(none.code, Some(2), "{none:?}");
    assert!(none.stderr.contains("no run under runs; name a folder"), "{none:?}");
    for (run, culprit) in [("0001", 1), ("0002", 0), ("0010", 2)] {
        let dump = serde_json::json!({
            "version": 1, "rank": 0, "num_ranks": 3, "written_by": 0, "host": null,
            "process": null, "culprit": culprit, "verdict": format!("rank {culprit} left"),
            "groups": [], "calls": [],
        });
        folder.write(&format!("runs/{run}/recipe.toml"), b"");
        let path = format!("runs/{run}/flight/flight-rank-0.json");
        folder.write(&path, dump.to_string().as_bytes());
    }
    let report = folder.json(&["doctor", "--json"]);
    assert_eq!(report["folder"], "runs/0010", "{report}");
    assert_eq!(report["verdicts"][0]["culprit"], 2, "{report}");
    let text = folder.succeed(&["doctor"]);
    assert!(text.stderr.contains("the newest run is runs/0010"), "{text:?}");
    assert!(text.stdout.contains("rank 2 left"), "{text:?}");
}
