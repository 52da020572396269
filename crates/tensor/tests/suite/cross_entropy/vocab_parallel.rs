//! The loss by shards of the vocabulary against the fused loss and against its definition.

use crate::common::{assert_close, ids, numbers, same_bits_everywhere, wide};
use lockstep_tensor::cross_entropy::vocab_parallel::{
    exponential_sums, exponentials, gradients, losses, raise_maxima, target_logits,
};
use lockstep_tensor::cross_entropy::{IGNORE, forward, forward_backward};
use lockstep_tensor::{Cpu, Isa, reference};

const ROWS: usize = 9;

fn targets(vocab: usize) -> Vec<u32> {
    let targets = ids(5, ROWS, vocab).into_iter().enumerate();
    targets.map(|(i, target)| if i % 4 == 2 { IGNORE } else { target }).collect()
}

/// Gradients as rows of the whole vocabulary, then losses, by `num_shards` shards.
fn by_shards(cpu: &Cpu, logits: &[f32], vocab: usize, num_shards: usize) -> Vec<f32> {
    let targets = targets(vocab);
    let len = vocab / num_shards;
    let columns = |shard: usize| shard * len..(shard + 1) * len;
    let mut shards: Vec<Vec<f32>> = (0..num_shards)
        .map(|shard| logits.chunks_exact(vocab).flat_map(move |r| r[columns(shard)].to_vec()))
        .map(Iterator::collect)
        .collect();
    let (mut max, mut sums) = (vec![f32::NEG_INFINITY; ROWS], vec![-0.0_f32; ROWS]);
    let (mut of_shard, mut unchanged) = (vec![f32::NAN; ROWS], vec![f32::NAN; ROWS]);
    let mut targets_logits = vec![f32::NAN; ROWS];
    for shard in &shards {
        raise_maxima(cpu, shard, &mut max);
    }
    for (shard, logits) in shards.iter_mut().enumerate() {
        target_logits(logits, columns(shard), &targets, &mut targets_logits);
        exponential_sums(cpu, logits, &targets, &max, &mut unchanged);
        exponentials(cpu, logits, &targets, &max, &mut of_shard);
        assert_eq!(
            of_shard.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            unchanged.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        );
        for (sum, of_shard) in sums.iter_mut().zip(&of_shard) {
            *sum += of_shard;
        }
    }
    let mut token_losses = vec![f32::NAN; ROWS];
    losses(&targets, &max, &sums, &targets_logits, &mut token_losses);
    let mut rows = vec![0.0; logits.len()];
    for (shard, exponentials) in shards.iter_mut().enumerate() {
        gradients(cpu, exponentials, columns(shard), &targets, 3, &sums);
        for (row, part) in rows.chunks_exact_mut(vocab).zip(exponentials.chunks_exact(len)) {
            row[columns(shard)].copy_from_slice(part);
        }
    }
    [rows, token_losses].concat()
}

#[test]
fn one_shard_has_the_bits_of_the_fused_loss() {
    for vocab in [1, 15, 16, 17, 100] {
        let logits: Vec<f32> = numbers(1, ROWS * vocab).iter().map(|x| 5.0 * x).collect();
        let got = same_bits_everywhere(|cpu| by_shards(cpu, &logits, vocab, 1));
        let (cpu, targets) = (Cpu::single(Isa::detect()), targets(vocab));
        let (mut gradient, mut losses) = (logits.clone(), vec![f32::NAN; ROWS]);
        forward(&cpu, &logits, vocab, &targets, &mut losses);
        forward_backward(&cpu, &mut gradient, vocab, &targets, 3, &mut losses);
        let expected = [gradient, losses].concat();
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got), bits(&expected), "{vocab}");
    }
}

#[test]
fn any_number_of_shards_matches_the_reference() {
    for (vocab, num_shards) in [(6, 2), (6, 3), (34, 2), (132, 4), (5_000, 8)] {
        let logits: Vec<f32> = numbers(1, ROWS * vocab).iter().map(|x| 5.0 * x).collect();
        let got = same_bits_everywhere(|cpu| by_shards(cpu, &logits, vocab, num_shards));
        let (gradient, losses) = got.split_at(logits.len());
        let (logits, targets) = (wide(&logits), targets(vocab));
        assert_close(losses, &reference::cross_entropy::forward(&logits, vocab, &targets), 1);
        let expected = reference::cross_entropy::backward(&logits, vocab, &targets, 3);
        // Scaled up to numbers near one, whose bound applies.
        let expected: Vec<f64> = expected.iter().map(|x| 3.0 * x).collect();
        let gradient: Vec<f32> = gradient.iter().map(|x| 3.0 * x).collect();
        assert_close(&gradient, &expected, vocab);
    }
}
