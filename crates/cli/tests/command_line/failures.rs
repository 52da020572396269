//! Workers that are killed or frozen in the middle of training: the others say the same about it,
//! the records of the run name it too, and nothing is left behind.

use crate::launch::{Running, send};
use crate::process::Folder;
use lockstep_platform::real;
use std::time::Duration;

/// Numbers that depend on nothing but the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 31)) >> 16) as usize % end
    }
}

#[test]
fn blows_at_random_moments_of_training_end_with_one_culprit() {
    let is_long = real().host().env("LOCKSTEP_SOAK").is_some();
    for seed in 0..if is_long { 100 } else { 4 } {
        let mut random = Random(seed);
        let (transport, zero) = (["auto", "tcp"][random.below(2)], random.below(3));
        let workers = 2 + random.below(2);
        let victim = random.below(workers);
        let signal = ["-KILL", "-STOP"][random.below(2)];
        let case = format!("seed {seed}: {signal} rank {victim} of {workers}, {transport}, {zero}");
        let folder = Folder::new();
        let run = Running::start(
            &folder,
            &[
                "run.deadline=1.2",
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

        let report = folder.json(&["doctor", "failed", "--json"]);
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
