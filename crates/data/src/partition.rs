//! Partitions of the samples with controlled heterogeneity: IID, Dirichlet or by class.
//!
//! Every sample is assigned to one part. There is one part for each client of a federated run, or
//! for each reduction leaf, so the partition does not depend on workers:
//!
//! - *iid*: at random, evenly;
//! - *dirichlet*: each class is divided among all parts in proportions drawn from Dirichlet(α)
//!   (Hsu et al., 2019): below 1 most parts hardly know most classes, above 100 all are alike;
//! - *by-class*: samples sorted by class are cut into twice as many shards as there are parts, and
//!   every part gets two (McMahan et al., 2017).
//!
//! The class of a sample is its digit, the side of a regression, or the tenth of the text that a
//! window starts in. A part draws its samples in an order that changes every epoch.

use lockstep_config::{Recipe, SyncPartition};
use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;

use crate::permutation::{Permutation, mix};

/// Purpose keys of the random numbers.
const ASSIGNMENT: u64 = 5;
const DRAWS: u64 = 6;

/// Number of classes of a text.
pub const TENTHS: usize = 10;

/// Assignment of samples to parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    seed: u64,
    parts: Vec<Vec<u32>>,
    classes: Vec<u8>,
}

/// Heterogeneity of a part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Skew {
    /// Number of samples in the part.
    pub num_samples: usize,
    /// Total variation distance between the class distributions of the part and of all samples: 0
    /// if equal, near 1 if disjoint.
    pub variation: f64,
    /// Most frequent class of the part.
    pub top_class: usize,
    /// Fraction of that class.
    pub top_share: f64,
}

impl Partition {
    /// Assigns samples of these classes to parts by the recipe.
    pub fn new(recipe: &Recipe, classes: Vec<u8>) -> Self {
        let num_parts = recipe.num_parts();
        let seed = recipe.train.seed;
        let mut parts = match recipe.sync.partition {
            SyncPartition::Shared | SyncPartition::Iid => iid(seed, classes.len(), num_parts),
            SyncPartition::Dirichlet => {
                dirichlet(seed, &classes, num_parts, recipe.sync.dirichlet_alpha)
            }
            SyncPartition::ByClass => by_class(seed, &classes, num_parts),
        };
        fill_empty_parts(&mut parts);
        Self { seed, parts, classes }
    }

    /// Classes of the windows of a text.
    pub fn tenths(num_windows: u64) -> Vec<u8> {
        (0..num_windows).map(|index| (index * TENTHS as u64 / num_windows) as u8).collect()
    }

    /// Draw number `turn` of a part.
    pub fn draw(&self, part: usize, index: u64) -> u32 {
        let own = &self.parts[part];
        let len = own.len() as u64;
        let epoch = mix(mix(mix(self.seed, DRAWS), part as u64), index / len);
        own[Permutation::new(len, epoch).apply(index % len) as usize]
    }

    /// Heterogeneity of every part.
    pub fn skew(&self) -> Vec<Skew> {
        let num_classes = self.classes.iter().map(|class| usize::from(*class) + 1).max();
        let num_classes = num_classes.unwrap_or(1);
        let shares = |samples: &mut dyn Iterator<Item = u8>| {
            let mut counts = vec![0.0; num_classes];
            let mut num = 0.0;
            for class in samples {
                counts[usize::from(class)] += 1.0;
                num += 1.0;
            }
            counts.iter().map(|count| count / num).collect::<Vec<f64>>()
        };
        let whole = shares(&mut self.classes.iter().copied());
        let of = |part: &Vec<u32>| {
            let own = shares(&mut part.iter().map(|sample| self.classes[*sample as usize]));
            let variation = own.iter().zip(&whole).map(|(own, all)| (own - all).abs()).sum::<f64>();
            let top = own.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            let (top_class, &top_share) = top.expect("there is a class");
            let num_samples = part.len();
            Skew { num_samples, variation: variation / 2.0, top_class, top_share }
        };
        self.parts.iter().map(of).collect()
    }
}

fn iid(seed: u64, num_samples: usize, num_parts: usize) -> Vec<Vec<u32>> {
    let order = Permutation::new(num_samples as u64, mix(seed, ASSIGNMENT));
    let mut parts = vec![Vec::new(); num_parts];
    for index in 0..num_samples {
        parts[index % num_parts].push(order.apply(index as u64) as u32);
    }
    parts
}

fn dirichlet(seed: u64, classes: &[u8], num_parts: usize, alpha: f64) -> Vec<Vec<u32>> {
    let mut parts = vec![Vec::new(); num_parts];
    for class in 0..=u8::MAX {
        let samples: Vec<u32> = samples_of_class(classes, class);
        if samples.is_empty() {
            continue;
        }
        let key = Key::new(seed, "partition").with(u64::from(class));
        let sizes: Vec<f64> =
            (0..num_parts).map(|part| gamma(key.with(part as u64), alpha)).collect();
        let all: f64 = sizes.iter().sum();
        let order =
            Permutation::new(samples.len() as u64, mix(mix(seed, ASSIGNMENT), u64::from(class)));
        // End of the part's share of the class.
        let (mut start, mut sum) = (0, 0.0);
        for (part, size) in parts.iter_mut().zip(&sizes) {
            sum += size / all;
            let end = ((sum * samples.len() as f64).round() as usize).clamp(start, samples.len());
            part.extend((start..end).map(|i| samples[order.apply(i as u64) as usize]));
            start = end;
        }
        let rest = (start..samples.len()).map(|i| samples[order.apply(i as u64) as usize]);
        parts[num_parts - 1].extend(rest);
    }
    parts
}

fn by_class(seed: u64, classes: &[u8], num_parts: usize) -> Vec<Vec<u32>> {
    let sorted: Vec<u32> =
        (0..=u8::MAX).flat_map(|class| samples_of_class(classes, class)).collect();
    let num_shards = 2 * num_parts;
    let order = Permutation::new(num_shards as u64, mix(seed, ASSIGNMENT));
    let shard = |index: usize| {
        let edge = |shard: usize| sorted.len() * shard / num_shards;
        let shard = order.apply(index as u64) as usize;
        sorted[edge(shard)..edge(shard + 1)].iter().copied()
    };
    (0..num_parts).map(|part| shard(2 * part).chain(shard(2 * part + 1)).collect()).collect()
}

fn samples_of_class(classes: &[u8], class: u8) -> Vec<u32> {
    let numbers = (0..).zip(classes);
    numbers.filter(|(_, found)| **found == class).map(|(number, _)| number).collect()
}

/// Moves a sample from the largest part to each empty one.
fn fill_empty_parts(parts: &mut [Vec<u32>]) {
    while let Some(empty) = parts.iter().position(Vec::is_empty) {
        let largest = (0..parts.len()).max_by_key(|part| parts[*part].len());
        let found = largest.and_then(|part| parts[part].pop());
        parts[empty].push(found.expect("config has proven that there are enough samples"));
    }
}

/// Draws from the Gamma distribution (Marsaglia and Tsang, 2000).
fn gamma(key: Key, shape: f64) -> f64 {
    if shape < 1.0 {
        // Gamma(a) is Gamma(a + 1) times U^(1/a).
        let u = key.with(1).uniform_f64(0).max(f64::MIN_POSITIVE);
        return gamma(key, shape + 1.0) * scalar::exp(scalar::ln(u) / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    let (normals, uniforms) = (key.with(2), key.with(3));
    for index in 0.. {
        let x = f64::from(normals.normal(index));
        let v = (1.0 + c * x) * (1.0 + c * x) * (1.0 + c * x);
        let u = uniforms.uniform_f64(index).max(f64::MIN_POSITIVE);
        if v > 0.0 && scalar::ln(u) < 0.5 * x * x + d - d * v + d * scalar::ln(v) {
            return d * v;
        }
    }
    unreachable!("more than nine in ten are taken")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};
    use std::collections::BTreeSet;

    fn partition(sets: &[&str]) -> Partition {
        let usual = ["sync.mode=federated", "federated.clients=20", "federated.sampled=8"];
        let sets = usual.iter().chain(sets).map(|set| (*set).to_owned()).collect();
        let preset = Some("digits".to_owned());
        let recipe = resolve(&Sources { preset, sets, ..Sources::default() }).unwrap();
        // Ten classes of a hundred samples.
        Partition::new(&recipe, (0..1000).map(|sample| (sample % 10) as u8).collect())
    }

    fn mean_variation(partition: &Partition) -> f64 {
        let skew = partition.skew();
        skew.iter().map(|part| part.variation).sum::<f64>() / skew.len() as f64
    }

    #[test]
    fn every_sample_is_in_one_part_and_comes_once_an_epoch() {
        for sets in [
            &["sync.partition=iid"][..],
            &["sync.partition=dirichlet", "sync.dirichlet_alpha=0.1"],
            &["sync.partition=by-class"],
        ] {
            let partition = partition(sets);
            let mut all = BTreeSet::new();
            for (part, skew) in partition.skew().iter().enumerate() {
                let len = skew.num_samples as u64;
                let epoch = |first: u64| -> BTreeSet<u32> {
                    (first..first + len).map(|index| partition.draw(part, index)).collect()
                };
                assert!(len > 0 && epoch(0).len() as u64 == len, "{sets:?}");
                assert_eq!(epoch(0), epoch(len), "the same again");
                assert!(epoch(0).iter().all(|sample| all.insert(*sample)), "in one part only");
            }
            assert_eq!(all, (0..1000).collect(), "{sets:?}");
        }
    }

    #[test]
    fn parts_differ_the_more_the_smaller_alpha_is() {
        let dirichlet = |alpha: &str| {
            mean_variation(&partition(&[
                "sync.partition=dirichlet",
                &format!("sync.dirichlet_alpha={alpha}"),
            ]))
        };
        let (even, some, much) = (dirichlet("1000"), dirichlet("1"), dirichlet("0.1"));
        assert!(even < 0.1 && some > 2.0 * even && much > 0.6, "{even} {some} {much}");
        let by_class = partition(&["sync.partition=by-class"]);
        // Two shards of a twentieth: at most two classes, each a tenth of all samples.
        assert!(mean_variation(&by_class) > 0.75);
        assert!(by_class.skew().iter().all(|part| part.top_share >= 0.5));
        assert!(mean_variation(&partition(&["sync.partition=iid"])) < 0.3);
    }

    #[test]
    fn gamma_has_its_mean_and_its_variance() {
        for shape in [0.1, 0.5, 1.0, 3.0] {
            let draws: Vec<f64> =
                (0..20_000).map(|i| gamma(Key::new(1, "gamma").with(i), shape)).collect();
            let mean = draws.iter().sum::<f64>() / 20_000.0;
            let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 20_000.0;
            assert!((mean / shape - 1.0).abs() < 0.06, "{shape}: mean {mean}");
            assert!((variance / shape - 1.0).abs() < 0.15, "{shape}: variance {variance}");
        }
    }
}
