//! Cross-entropy, whole and over a sharded vocabulary.

use super::{Case, on_every_device};
use crate::common::{ids, numbers};
use lockstep_tensor::cross_entropy::IGNORE;
use lockstep_tensor::device::{Buffer, Dtype, Targets, ViewMut};
use lockstep_tensor::gemm::Write;
use lockstep_tensor::reference;

const ROWS: usize = 5;

/// Targets with an ignored row.
fn targets(vocab: usize) -> Vec<u32> {
    let mut targets = ids(1, ROWS, vocab);
    targets[2] = IGNORE;
    targets
}

fn exact(case: Case) -> Case {
    Case { dtype: Dtype::F32, ..case }
}

#[test]
fn losses_and_gradients_match_the_oracle() {
    for (vocab, loss_scale) in [(1, 1.0), (17, 8.0), (200, 1.0), (9001, 1.0), (50_304, 1.0)] {
        let (logits, targets) = (numbers(2, ROWS * vocab), targets(vocab));
        // Far from zero, so that an exponential without the maximum would overflow.
        let logits: Vec<f32> = logits.iter().map(|x| 60.0 + 3.0 * x).collect();
        on_every_device(
            |case| {
                let (device, ids) = (case.device, case.upload_ids(&targets));
                let (mut gradients, logits) = (case.upload(&logits), case.upload(&logits));
                let [mut losses, mut evaluated] = [(); 2].map(|()| case.poisoned_f32(ROWS));
                let mut total = device.allocate(Dtype::F64, 1).unwrap();
                let mut outputs = Vec::new();
                let target = (evaluated.view_mut(), total.view_mut());
                device
                    .cross_entropy(logits.view(), ids.view(), target.0, target.1, Write::Set)
                    .unwrap();
                outputs.push(case.download_f64(&total)[0] as f32);
                let targets = Targets { ids: ids.view(), num_targets: 7, loss_scale };
                let (gradients_view, losses_view) = (gradients.view_mut(), losses.view_mut());
                device
                    .cross_entropy_backward(
                        gradients_view,
                        targets,
                        losses_view,
                        total.view_mut(),
                        Write::Set,
                    )
                    .unwrap();
                outputs.push(case.download_f64(&total)[0] as f32);
                vec![
                    outputs,
                    case.download(&evaluated),
                    case.download(&losses),
                    case.download(&gradients),
                ]
            },
            |case, got| {
                let logits = case.wide(&logits);
                let losses = reference::cross_entropy::forward(&logits, vocab, &targets);
                let total: f64 = losses.iter().sum();
                exact(case).assert_close("totals", &got[0], &[total; 2], vocab);
                exact(case).assert_close("losses", &got[1], &losses, vocab);
                assert_eq!(super::bits(&got[1]), super::bits(&got[2]), "{}", case.label());
                let gradients = reference::cross_entropy::backward(&logits, vocab, &targets, 7);
                let scale = f64::from(loss_scale);
                let gradients: Vec<f64> = gradients.iter().map(|x| x * scale).collect();
                case.assert_close("gradients", &got[3], &gradients, vocab);
                let ignored = &got[3][2 * vocab..3 * vocab];
                assert!(ignored.iter().all(|x| *x == 0.0), "{}: ignored row", case.label());
            },
        );
    }
}

#[test]
fn rows_in_pieces_give_the_losses_and_gradients_of_the_whole() {
    let (vocab, first) = (200, 2);
    let (logits, targets) = (numbers(2, ROWS * vocab), targets(vocab));
    on_every_device(
        |case| {
            let (device, ids) = (case.device, case.upload_ids(&targets));
            let mut outputs = Vec::new();
            for cut in [0, first] {
                let pieces = [0..cut, cut..ROWS].into_iter().filter(|rows| !rows.is_empty());
                let mut logits = case.upload(&logits);
                let mut losses = case.poisoned_f32(ROWS);
                let mut total = device.allocate(Dtype::F64, 1).unwrap();
                for rows in pieces {
                    let write = if rows.start == 0 { Write::Set } else { Write::Add };
                    let ids = ids.view().range(rows.clone());
                    let targets = Targets { ids, num_targets: 7, loss_scale: 1.0 };
                    let logits = logits.view_mut().range(rows.start * vocab..rows.end * vocab);
                    let losses = losses.view_mut().range(rows);
                    device
                        .cross_entropy_backward(logits, targets, losses, total.view_mut(), write)
                        .unwrap();
                }
                outputs.push(vec![case.download_f64(&total)[0] as f32]);
                outputs.extend([case.download(&losses), case.download(&logits)]);
            }
            outputs
        },
        |case, got| {
            let (whole, pieces) = got.split_at(3);
            let total = f64::from(whole[0][0]);
            exact(case).assert_close("total", &pieces[0], &[total], ROWS);
            for part in 1..3 {
                assert_eq!(super::bits(&whole[part]), super::bits(&pieces[part]));
            }
        },
    );
}

#[test]
fn shards_of_the_vocabulary_give_the_loss_of_the_whole() {
    let (vocab, split) = (123, 50);
    let (logits, targets) = (numbers(3, ROWS * vocab), targets(vocab));
    on_every_device(
        |case| {
            let (device, ids) = (case.device, case.upload_ids(&targets));
            let mut max = case.upload_f32(&[f32::NEG_INFINITY; ROWS]);
            let mut target_logits = case.upload_f32(&[-0.0; ROWS]);
            let mut shards = [0..split, split..vocab].map(|columns| {
                let part = |row: &[f32]| row[columns.clone()].to_vec();
                let part: Vec<f32> = logits.chunks(vocab).flat_map(part).collect();
                (columns.start, case.upload(&part), case.poisoned_f32(ROWS))
            });
            for (first, logits, _) in &shards {
                device.raise_maxima(logits.view(), max.view_mut()).unwrap();
                let target = target_logits.view_mut();
                device.target_logits(logits.view(), *first, ids.view(), target).unwrap();
            }
            for trains in [false, true] {
                for (_, logits, sums) in &mut shards {
                    let (logits, sums) = (logits.view_mut(), sums.view_mut());
                    device.exponential_sums(logits, ids.view(), max.view(), sums, trains).unwrap();
                }
            }
            let mut sums = case.poisoned_f32(ROWS);
            device.add(shards[0].2.view(), shards[1].2.view(), sums.view_mut()).unwrap();
            let targets = Targets { ids: ids.view(), num_targets: 4, loss_scale: 2.0 };
            for (first, logits, _) in &mut shards {
                let logits = logits.view_mut();
                device.shard_gradients(logits, *first, targets, max.view(), sums.view()).unwrap();
            }
            let mut losses = case.poisoned_f32(ROWS);
            let mut total = device.allocate(Dtype::F64, 1).unwrap();
            device
                .shard_losses(
                    ids.view(),
                    max.view(),
                    sums.view(),
                    target_logits.view(),
                    losses.view_mut(),
                    total.view_mut(),
                )
                .unwrap();
            let total = vec![case.download_f64(&total)[0] as f32];
            let [first, second] = shards.map(|(_, gradients, _)| case.download(&gradients));
            let rows = first.chunks(split).zip(second.chunks(vocab - split));
            let gradients = rows.flat_map(|(a, b)| [a, b].concat()).collect();
            vec![total, case.download(&losses), gradients]
        },
        |case, got| {
            let logits = case.wide(&logits);
            let losses = reference::cross_entropy::forward(&logits, vocab, &targets);
            exact(case).assert_close("total", &got[0], &[losses.iter().sum()], vocab);
            exact(case).assert_close("losses", &got[1], &losses, vocab);
            let gradients = reference::cross_entropy::backward(&logits, vocab, &targets, 4);
            let gradients: Vec<f64> = gradients.iter().map(|x| 2.0 * x).collect();
            case.assert_close("gradients", &got[2], &gradients, vocab);
        },
    );
}

#[test]
fn the_greedy_token_is_the_first_of_the_largest_logits() {
    let long = |at: &[usize]| {
        let mut logits = vec![-3.5; 40_003];
        for index in at {
            logits[*index] = 2.25;
        }
        logits
    };
    let cases = [
        (vec![-1.5], 0, 0),
        (vec![-4.0, -2.0, -8.0], 1, 0),
        (vec![-1.0, -0.0, 0.0], 1, 0),
        (vec![f32::NEG_INFINITY; 3], 0, 0),
        (long(&[40_002]), 40_002, 0),
        (long(&[8193, 17, 39_999]), 17, 0),
        (long(&[8192, 8191]), 8191, 0),
        (vec![1.0, f32::NAN, 2.0, 0.5], u32::MAX, 1),
    ];
    for (logits, expected, num_invalid) in cases {
        on_every_device(
            |case| {
                let (device, buffer) = (case.device, case.upload(&logits));
                let [mut token, mut invalid] = [7, 0].map(|id| case.upload_ids(&[id]));
                let choose = |token: &mut Buffer, invalid: &mut Buffer| {
                    device.greedy_token(buffer.view(), token.view_mut(), invalid.view_mut())
                };
                choose(&mut token, &mut invalid).unwrap();
                choose(&mut token, &mut invalid).unwrap();
                let ids = [token, invalid].map(|id| {
                    let mut host = [0u32];
                    device.copy(id.view(), ViewMut::of(&mut host)).unwrap();
                    host[0] as f32
                });
                vec![ids.to_vec()]
            },
            |case, got| {
                let [token, invalid] = got[0][..] else { panic!("two numbers") };
                assert_eq!(invalid as u32, 2 * num_invalid, "{}", case.label());
                if num_invalid == 0 {
                    assert_eq!(token as u32, expected, "{}", case.label());
                }
                assert!((token as usize) < logits.len(), "{}: {token}", case.label());
            },
        );
    }
}
