//! Workers that are killed or frozen in the middle of training: the others say the same about it,
//! the records of the run name it too, and nothing is left behind.

use crate::launch::{Running, send};
use crate::process::Folder;
use lockstep_conformance::cases::{Random, chosen};
use lockstep_platform::real;
use std::time::Duration;

#[test]
fn blows_at_random_moments_of_training_end_with_one_culprit() {
    for seed in chosen(&real(), 200, 10) {
        let mut random = Random(seed);
        let (transport, zero) = (["auto", "tcp"][random.below(2)], random.below(3));
        let workers = 2 + random.below(2);
        let victim = random.below(workers);
        let signal = ["-KILL", "-STOP"][random.below(2)];
        // Nobody waits for one that was killed; for a frozen one all wait until the deadline.
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
        let (status, words) = run.end();
        assert_eq!(status.code(), Some(3), "{case}: {words}");
        assert_same_words(&words, victim, &case);

        let told = folder.run(&["doctor", "failed", "--json"]);
        assert_eq!(told.code, Some(0), "{case}: {}{words}", told.stderr);
        let report: serde_json::Value = serde_json::from_str(&told.stdout).expect("a JSON value");
        let verdicts = report["verdicts"].as_array().expect("a list");
        assert_eq!(verdicts.len(), 1, "{case}: {report}");
        assert_eq!(verdicts[0]["culprit"], victim, "{case}: {report}");
        let text = folder.succeed(&["doctor", "failed"]).stdout;
        assert!(text.contains(&format!("rank {victim}")), "{case}: {text}");
    }
}

/// Whatever the workers said about the failure is the same on all of them.
fn assert_same_words(words: &str, victim: usize, case: &str) {
    let mut said: Vec<&str> = words
        .lines()
        .filter_map(|line| line.split_once("error: "))
        .map(|(_, text)| match text.split_once(": ") {
            Some((rank, rest)) if rank.starts_with("rank ") && rank.len() < 8 => rest,
            _ => text,
        })
        .filter(|text| !text.contains("was killed by signal"))
        .collect();
    said.sort_unstable();
    said.dedup();
    assert_eq!(said.len(), 1, "{case}: {words}");
    assert!(said[0].contains(&format!("rank {victim}")), "{case}: {words}");
}

#[test]
fn a_folder_without_records_is_refused_with_what_would_do() {
    let folder = Folder::new();
    folder.write("empty/notes.txt", b"nothing");
    let finished = folder.run(&["doctor", "empty"]);
    assert_eq!(finished.code, Some(2));
    assert!(finished.stderr.contains("holds no flight-rank-N.json"), "{}", finished.stderr);
    folder.write("odd/flight-rank-0.json", b"{\"version\": 1}");
    let finished = folder.run(&["doctor", "odd"]);
    assert_eq!(finished.code, Some(2));
    assert!(finished.stderr.contains("not the records of a rank"), "{}", finished.stderr);
}
