//! Tests of deduplication against exact sets of shingles.

use std::collections::BTreeSet;

use lockstep_platform::{ScratchDir, World};

use super::banding::Bands;
use super::minhash::MinHash;
use super::normalize::terms;
use super::*;
use crate::ReadOptions;
use crate::permutation::mix;

/// Shape for a threshold of 0.7.
const SHAPE: BandShape = BandShape { bands: 25, rows: 10 };
const SIMILAR: SimilarityOptions =
    SimilarityOptions { num_permutations: 256, shape: SHAPE, shingle_terms: 3, seed: 1 };

fn shingles(text: &str) -> BTreeSet<Vec<&str>> {
    let terms: Vec<&str> = terms(text).collect();
    terms.windows(SIMILAR.shingle_terms.min(terms.len())).map(<[_]>::to_vec).collect()
}

/// Jaccard similarity of two texts, from their sets.
fn jaccard(left: &str, right: &str) -> f64 {
    let (left, right) = (shingles(left), shingles(right));
    left.intersection(&right).count() as f64 / left.union(&right).count() as f64
}

/// A text of 200 words, of which `num_changed` at the end differ by `version`.
fn text(number: u64, version: u64, num_changed: u64) -> String {
    let word = |index| {
        let is_changed = index >= 200 - num_changed;
        let seed = if is_changed { mix(number, 1_000 + version) } else { number };
        format!("{:x} ", mix(seed, index) % 5_000)
    };
    (0..200).map(word).collect()
}

#[test]
fn components_agree_as_often_as_the_sets_are_similar() {
    let mut minhash = MinHash::new(SIMILAR);
    for num_changed in [0, 10, 40, 100, 200] {
        let (mut agreeing, mut expected) = (0.0, 0.0);
        for number in 0..20 {
            let [left, right] = [text(number, 0, num_changed), text(number, 1, num_changed)];
            let first = minhash.signature(&left).to_vec();
            let second = minhash.signature(&right);
            agreeing += first.iter().zip(second).filter(|(a, b)| a == b).count() as f64;
            expected += 256.0 * jaccard(&left, &right);
        }
        // Four standard deviations of 20 times 256 components, at most.
        assert!((agreeing - expected).abs() <= 4.0 * (20.0_f64 * 256.0 / 4.0).sqrt(), "{expected}");
    }
}

#[test]
fn the_shape_of_the_bands_is_that_of_datasketch() {
    // MinHashLSH(threshold=0.9, num_perm=128) of datasketch 1.6 has 5 bands of 25.
    assert_eq!(BandShape::best(0.9, 128), BandShape { bands: 5, rows: 25 });
    assert_eq!(BandShape::best(0.7, 256), SHAPE);
    assert!(SHAPE.probability(0.5) < 0.05 && SHAPE.probability(0.9) > 0.99);
}

#[test]
fn pairs_are_found_with_the_probability_of_their_similarity() {
    let mut minhash = MinHash::new(SIMILAR);
    for num_changed in [4, 20, 36, 60, 120] {
        let (mut found, mut expected, mut variance) = (0.0, 0.0, 0.0);
        for number in 0..60 {
            let [left, right] = [text(number, 0, num_changed), text(number, 1, num_changed)];
            let mut bands = Bands::new(SHAPE);
            bands.reserve(1 << 30).unwrap();
            assert!(bands.insert(minhash.signature(&left)));
            bands.reserve(1 << 30).unwrap();
            found += f64::from(u8::from(!bands.insert(minhash.signature(&right))));
            let probability = SHAPE.probability(jaccard(&left, &right));
            expected += probability;
            variance += probability * (1.0 - probability);
        }
        let error: f64 = found - expected;
        assert!(
            error.abs() <= 4.0 * f64::sqrt(variance) + 1e-6,
            "{num_changed}: {found}, {expected}"
        );
    }
}

struct Folder {
    world: World,
    scratch: ScratchDir,
}

impl Folder {
    fn with(texts: &[String]) -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "dedup").unwrap();
        let lines = texts.iter().map(|text| serde_json::json!({ "text": text }).to_string() + "\n");
        let path = scratch.path().join("in.jsonl");
        world.files().write_atomic(&path, lines.collect::<String>().as_bytes()).unwrap();
        Self { world, scratch }
    }

    fn dedup(
        &self,
        similar: Option<SimilarityOptions>,
        limit: u64,
    ) -> Result<DedupProgress, DataError> {
        let options = DedupOptions { similar, memory_bytes: limit, field: "text".to_owned() };
        let source = self.scratch.path().join("in.jsonl");
        let documents = Documents::open(&source, &ReadOptions::default(), &self.world)?;
        let target = self.scratch.path().join("out.jsonl");
        dedup(documents, &target, &options, &self.world, &mut |_| {})
    }

    fn kept(&self) -> Vec<String> {
        let path = self.scratch.path().join("out.jsonl");
        let mut documents = Documents::open(&path, &ReadOptions::default(), &self.world).unwrap();
        let (mut all, mut text) = (Vec::new(), String::new());
        while documents.next_document(&mut text).unwrap() {
            all.push(text.clone());
        }
        self.world.files().remove_file(&path).unwrap();
        all
    }
}

#[test]
fn the_first_of_equal_documents_is_kept() {
    let texts = ["One two.", "other", "one  TWO.\n", "One two!", "other", "日本 \"quoted\"\u{1}"];
    let folder = Folder::with(&texts.map(str::to_owned));
    let counters = folder.dedup(None, 1 << 20).unwrap();
    assert_eq!(folder.kept(), ["One two.", "other", "One two!", texts[5]]);
    assert_eq!((counters.num_documents, counters.num_exact, counters.num_similar), (6, 2, 0));
    assert_eq!(counters.memory_bytes, 16 << 12);
    // Near-duplicates differ in signs only.
    let counters = folder.dedup(Some(SIMILAR), 1 << 24).unwrap();
    assert_eq!(folder.kept(), ["One two.", "other", texts[5]]);
    assert_eq!((counters.num_exact, counters.num_similar), (2, 1));
}

#[test]
fn every_removed_document_resembles_a_kept_one_and_no_kept_ones_do() {
    let of = |index: u64| text(index % 40, index, [2, 4, 100, 160][index as usize % 4]);
    let texts: Vec<String> = (0..160).map(of).collect();
    let folder = Folder::with(&texts);
    let counters = folder.dedup(Some(SIMILAR), 1 << 24).unwrap();
    let kept = folder.kept();
    assert!(counters.num_similar > 20, "{counters:?}");
    for text in &texts {
        let most = kept.iter().map(|kept| jaccard(kept, text)).fold(0.0, f64::max);
        assert!(most > 0.55, "{most}: a probability below one in a thousand");
    }
    for (index, left) in kept.iter().enumerate() {
        for right in &kept[index + 1..] {
            assert!(jaccard(left, right) < 0.85, "a probability below one in a thousand");
        }
    }
}

#[test]
fn too_little_memory_is_an_error_and_leaves_no_file() {
    let texts: Vec<String> = (0..20_000).map(|index| format!("text {index}")).collect();
    let folder = Folder::with(&texts);
    let error = folder.dedup(None, 200_000).unwrap_err();
    assert_eq!(error.blame(), lockstep_config::Blame::User);
    assert!(error.to_string().contains("--memory allows 200000"), "{error}");
    assert_eq!(folder.world.files().list(folder.scratch.path()).unwrap().len(), 1);
}
