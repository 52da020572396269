//! Embeddings against their definition, against differences, and to the bit in token order.

use crate::common::{
    ODD_WIDTHS, assert_close, central_differences, dot, ids, numbers, same_bits_everywhere, wide,
};
use lockstep_tensor::embedding::{
    add_positions, backward, backward_part, forward, forward_part, positions_backward,
};
use lockstep_tensor::{Cpu, Isa, reduce, reference};

const VOCABS: [usize; 4] = [1, 7, 64, 259];

#[test]
fn forward_copies_the_row_of_every_token() {
    for width in ODD_WIDTHS {
        for vocab in VOCABS {
            let (ids, table) = (ids(1, 37, vocab), numbers(2, vocab * width));
            let got = same_bits_everywhere(|cpu| {
                let mut out = vec![f32::NAN; ids.len() * width];
                forward(cpu, &ids, &table, width, &mut out);
                out
            });
            assert_eq!(wide(&got), reference::embedding::forward(&ids, &wide(&table), width));
        }
    }
}

#[test]
fn backward_adds_tokens_in_ascending_order_to_the_bit() {
    for width in ODD_WIDTHS {
        for vocab in VOCABS {
            let ids = ids(3, 101, vocab);
            let (dout, start) = (numbers(4, ids.len() * width), numbers(5, vocab * width));
            let got = same_bits_everywhere(|cpu| {
                let mut dtable = start.clone();
                backward(cpu, &ids, &dout, width, &mut dtable);
                dtable
            });
            let mut expected = start.clone();
            for (token, &id) in ids.iter().enumerate() {
                for j in 0..width {
                    expected[id as usize * width + j] += dout[token * width + j];
                }
            }
            assert_eq!(got, expected, "{vocab} rows of {width}");
        }
    }
}

#[test]
fn backward_matches_the_reference_and_central_differences() {
    let (vocab, width) = (5, 17);
    let (ids, table) = (ids(6, 23, vocab), numbers(7, vocab * width));
    let dout = numbers(8, ids.len() * width);
    let mut dtable = vec![0.0; table.len()];
    backward(&Cpu::single(Isa::detect()), &ids, &dout, width, &mut dtable);
    let expected = reference::embedding::backward(&ids, &wide(&dout), width, vocab);
    assert_close(&dtable, &expected, ids.len());
    let expected = central_differences(&table, |table| {
        dot(&reference::embedding::forward(&ids, table, width), &wide(&dout))
    });
    assert_close(&dtable, &expected, ids.len());
}

#[test]
fn positions_repeat_in_every_sequence() {
    for width in ODD_WIDTHS {
        for (num_sequences, tokens, first_position) in
            [(1, 1, 0), (3, 5, 0), (2, 19, 4), (1, 1, 22)]
        {
            let x = numbers(9, num_sequences * tokens * width);
            let table = numbers(10, 23 * width);
            let got = same_bits_everywhere(|cpu| {
                let mut x = x.clone();
                add_positions(cpu, &table, (tokens, None), first_position, width, &mut x);
                x
            });
            let (table, x) = (wide(&table), wide(&x));
            let expected = reference::embedding::add_positions(
                &table,
                (tokens, None),
                first_position,
                width,
                &x,
            );
            assert_close(&got, &expected, 1);
        }
    }
}

#[test]
fn positions_backward_is_one_chain_over_ascending_sequences() {
    for width in ODD_WIDTHS {
        for (num_sequences, tokens) in [(1, 1), (3, 5), (5, 19)] {
            let dx = numbers(11, num_sequences * tokens * width);
            let start = numbers(12, 23 * width);
            let got = same_bits_everywhere(|cpu| {
                let mut dtable = start.clone();
                positions_backward(cpu, &dx, (tokens, None), width, &mut dtable);
                dtable
            });
            let mut expected = start.clone();
            for (i, expected) in expected[..tokens * width].iter_mut().enumerate() {
                let mut sum = 0.0;
                for sequence in dx.chunks_exact(tokens * width) {
                    sum += sequence[i];
                }
                *expected += sum;
            }
            assert_eq!(got, expected, "{num_sequences} sequences of {tokens} rows of {width}");
        }
    }
}

#[test]
fn positions_backward_matches_the_reference_and_central_differences() {
    let (num_sequences, tokens, width) = (3, 4, 17);
    // Documents of the sequences: one, two and four.
    let documents: &[u32] = &[0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 2, 3];
    let (x, table) = (numbers(13, num_sequences * tokens * width), numbers(14, 6 * width));
    let dx = numbers(15, x.len());
    for documents in [None, Some(documents)] {
        let sequences = (tokens, documents);
        let both = same_bits_everywhere(|cpu| {
            let (mut sum, mut dtable) = (x.clone(), vec![0.0; table.len()]);
            add_positions(cpu, &table, sequences, 0, width, &mut sum);
            positions_backward(cpu, &dx, sequences, width, &mut dtable);
            [sum, dtable].concat()
        });
        let (sum, dtable) = both.split_at(x.len());
        let forward = |table: &[f64]| {
            reference::embedding::add_positions(table, sequences, 0, width, &wide(&x))
        };
        assert_close(sum, &forward(&wide(&table)), 1);
        let expected = reference::embedding::positions_backward(&wide(&dx), sequences, width, 6);
        assert_close(dtable, &expected, x.len() / width);
        let expected = central_differences(&table, |table| dot(&forward(table), &wide(&dx)));
        assert_close(dtable, &expected, x.len() / width);
    }
}

#[test]
#[should_panic(expected = "token 2 has id 9, but the table has 4 rows")]
fn an_id_without_a_row_is_reported() {
    let cpu = Cpu::single(Isa::Portable);
    forward(&cpu, &[0, 3, 9], &[0.0; 8], 2, &mut [0.0; 6]);
}

#[test]
#[should_panic(expected = "5 positions, but the table has 4 rows")]
fn a_position_without_a_row_is_reported() {
    let cpu = Cpu::single(Isa::Portable);
    add_positions(&cpu, &[0.0; 8], (3, None), 2, 2, &mut [0.0; 6]);
}

#[test]
fn shards_of_a_table_add_up_to_the_whole_with_the_sign_of_zero() {
    let (vocab, width) = (12, 5);
    let mut table = numbers(1, vocab * width);
    table[3 * width] = -0.0;
    table[3 * width + 1] = 0.0;
    let ids: Vec<u32> = (0..vocab as u32).chain([3, 3, 11]).collect();
    let dout = numbers(2, ids.len() * width);
    let cpu = Cpu::single(Isa::detect());
    let (mut whole, mut dwhole) = (vec![f32::NAN; dout.len()], vec![0.5; table.len()]);
    forward(&cpu, &ids, &table, width, &mut whole);
    backward(&cpu, &ids, &dout, width, &mut dwhole);
    let (mut sum, mut dparts) = (vec![-0.0; dout.len()], Vec::new());
    for first_row in [0, 4, 8] {
        let part = &table[first_row * width..][..4 * width];
        let mut out = vec![f32::NAN; dout.len()];
        forward_part(&cpu, &ids, part, first_row, width, &mut out);
        reduce::add_assign(&cpu, &mut sum, &out);
        let mut dpart = vec![0.5; part.len()];
        backward_part(&cpu, &ids, &dout, first_row, width, &mut dpart);
        dparts.extend(dpart);
    }
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&sum), bits(&whole));
    assert_eq!(bits(&dparts), bits(&dwhole));
}
