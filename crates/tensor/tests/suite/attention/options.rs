//! Windows, capped and biased scores, and packed documents.

use super::*;
use lockstep_tensor::attention::alibi_slope;

impl Case {
    /// Documents that begin at these positions of every sequence.
    fn packed(mut self, starts: &[u32]) -> Self {
        let Shape { sequences, tokens, .. } = self.shape;
        let start = |query: u32| *starts.iter().rfind(|start| **start <= query).unwrap_or(&0);
        let of_sequence: Vec<u32> = (0..tokens as u32).map(start).collect();
        self.documents = Some(of_sequence.repeat(sequences));
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Options<'static>)) -> Self {
        change(&mut self.options);
        self
    }

    fn windowed(self, window: usize) -> Self {
        self.with(|options| options.window = Some(window))
    }

    fn capped(self, cap: f32) -> Self {
        self.with(|options| options.soft_cap = Some(cap))
    }

    fn biased(self) -> Self {
        let heads = Heads::all(&self.shape);
        self.with(|options| options.alibi = Some(heads))
    }
}

/// Each option, and several together, over several tiles.
fn cases(tokens: usize) -> Vec<Case> {
    let new = || Case::new(2, tokens, (4, 2), 16);
    vec![
        new().windowed(1),
        new().windowed(7),
        new().windowed(64),
        new().windowed(100),
        new().capped(2.0),
        new().with(|options| options.scale = Some(0.125)),
        new().biased(),
        Case::new(1, tokens, (6, 1), 8).biased(),
        new().packed(&[0, 5, 6, 63, 64, 100, 131]),
        new().packed(&[0, 90]).windowed(40).capped(1.5).biased().dropping(0.2, 3),
    ]
}

#[test]
fn every_option_matches_the_reference() {
    for tokens in [1, 65, 150, 200] {
        for case in cases(tokens) {
            assert_matches_reference(&case);
        }
    }
}

#[test]
fn gradients_of_options_match_central_differences() {
    let new = || Case::new(1, 66, (2, 1), 6);
    assert_gradients(&new().windowed(20).capped(1.5));
    assert_gradients(&new().capped(1.5).biased().dropping(0.25, 3).packed(&[0, 30, 65]));
}

#[test]
fn threads_and_instruction_sets_do_not_change_a_bit_of_an_option() {
    for case in cases(150) {
        for run in [Case::run, Case::run_in_bf16] {
            let expected = run(&case, &Cpu::single(Isa::Portable));
            for cpu in [Cpu::single(Isa::detect()), two_threads(Isa::detect())] {
                let got = run(&case, &cpu);
                assert_eq!(bits(&got.out), bits(&expected.out), "{:?}", case.options);
                assert_eq!(bits(&got.lse), bits(&expected.lse), "{:?}", case.options);
                assert_eq!(bits(&got.dqkv), bits(&expected.dqkv), "{:?}", case.options);
            }
        }
    }
}

#[test]
fn decoding_with_options_gives_the_bits_of_the_full_pass() {
    for change in [
        |case: Case| case.windowed(3),
        |case: Case| case.windowed(70),
        |case: Case| case.windowed(64).capped(2.0),
        Case::biased,
    ] {
        let case = change(Case::new(2, 140, (4, 2), 20));
        decode(&case, Precision::F32, &case.run(&single()));
        decode(&case, Precision::Bf16, &case.run_in_bf16(&single()));
    }
}

#[test]
fn a_window_and_a_document_of_the_whole_sequence_change_no_bit() {
    let new = || Case::new(2, 130, (4, 2), 16);
    let plain = new().run(&single());
    for case in [new().windowed(130), new().windowed(1 << 20), new().packed(&[0])] {
        let got = case.run(&single());
        assert_eq!(bits(&got.out), bits(&plain.out));
        assert_eq!(bits(&got.dqkv), bits(&plain.dqkv));
    }
}

#[test]
fn other_documents_and_keys_before_the_window_contribute_exactly_zero() {
    let new = || Case::new(1, 150, (2, 1), 8);
    for (first_unseen, case) in [(90, new().packed(&[0, 20, 90])), (90, new().windowed(60))] {
        // Queries from 149 on see keys from 90 on only; none of the last document looks back.
        let before = case.run(&single());
        let mut moved = case;
        for x in &mut moved.k[..first_unseen * 8] {
            *x *= -3.0;
        }
        for x in &mut moved.v[..first_unseen * 8] {
            *x *= 1e20;
        }
        let after = moved.run(&single());
        let last = |x: &[f32]| bits(&x[149 * 16..]);
        assert_eq!(last(&before.out), last(&after.out));
        assert_ne!(bits(&before.out), bits(&after.out));
    }
}

#[test]
fn a_document_alone_and_in_a_row_give_close_results() {
    // From a multiple of the tile on, even the bits are equal.
    let packed = Case::new(1, 150, (2, 1), 8).packed(&[0, 30, 64]);
    let got = packed.run(&single());
    let mut alone = Case::new(1, 86, (2, 1), 8);
    alone.q = packed.q[64 * 16..].to_vec();
    alone.k = packed.k[64 * 8..].to_vec();
    alone.v = packed.v[64 * 8..].to_vec();
    alone.dout = packed.dout[64 * 16..].to_vec();
    let alone = alone.run(&single());
    assert_eq!(bits(&got.out[64 * 16..]), bits(&alone.out));
    assert_eq!(bits(&got.dqkv[64 * 32..]), bits(&alone.dqkv));
}

#[test]
#[should_panic(expected = "documents start in ascending order, before their queries")]
fn documents_that_begin_after_their_queries_are_refused() {
    let mut case = Case::new(1, 8, (2, 1), 8);
    case.documents = Some(vec![0, 0, 3, 3, 3, 3, 3, 3]);
    case.run(&single());
}

#[test]
fn slopes_are_those_of_the_paper() {
    let slopes = |num: usize| (0..num).map(|head| alibi_slope(num, head)).collect::<Vec<_>>();
    let eight = [0.5, 0.25, 0.125, 0.0625, 0.031_25, 0.015_625, 0.007_812_5, 0.003_906_25];
    assert_eq!(bits(&slopes(8)), bits(&eight));
    // Those of four heads, then the first and the third of eight.
    assert_eq!(bits(&slopes(6)), bits(&[0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]));
}
