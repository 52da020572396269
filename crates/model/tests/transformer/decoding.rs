//! Decoding token by token gives the logits of a full forward pass.

use super::tiny::{Batch, GPT2, LLAMA, LONG, Tiny, assert_same};
use lockstep_model::{Decoder, Mode, Recompute};
use lockstep_tensor::{Cpu, Isa};

#[test]
fn decoding_gives_the_logits_of_a_full_forward() {
    for model in [LLAMA, GPT2, LONG] {
        let batch = Batch::new(&model, 1);
        let tiny = Tiny::new(&model);
        for isa in Isa::available() {
            let cpu = Cpu::single(isa);
            let all = tiny.run(&cpu, &batch.microbatch(), Mode::Evaluate, Recompute::None, 0.0);
            let mixed = vec![4, 1, 1, 3, model.context - 10, 1];
            for chunks in [vec![model.context], vec![1; model.context], mixed] {
                let mut decoder = Decoder::new(&tiny.blueprint, &cpu, model.context).unwrap();
                for chunk in &chunks {
                    let end = decoder.num_positions() + chunk;
                    let tokens = &batch.inputs()[end - chunk..end];
                    let logits = decoder.feed(&tiny.params, tokens).unwrap();
                    let expected = &all.logits[(end - 1) * model.vocab..end * model.vocab];
                    assert_same(logits, expected, &format!("{isa}, {chunks:?}, {model:?}"));
                }
                assert_eq!(decoder.num_remaining(), 0);
            }
        }
    }
}

#[test]
fn a_decoder_can_start_over() {
    let cpu = Cpu::single(Isa::detect());
    let tiny = Tiny::new(&LLAMA);
    let mut decoder = Decoder::new(&tiny.blueprint, &cpu, 2).unwrap();
    let first = decoder.feed(&tiny.params, &[3, 1]).unwrap().to_vec();
    decoder.feed(&tiny.params, &[4]).unwrap();
    decoder.reset();
    assert_same(decoder.feed(&tiny.params, &[3, 1]).unwrap(), &first, "the second start");
}

#[test]
#[should_panic(expected = "the context holds 11")]
fn a_full_context_takes_no_more() {
    let cpu = Cpu::single(Isa::detect());
    let tiny = Tiny::new(&LLAMA);
    let mut decoder = Decoder::new(&tiny.blueprint, &cpu, 6).unwrap();
    decoder.feed(&tiny.params, &[1; 6]).unwrap();
    decoder.feed(&tiny.params, &[1; 6]).unwrap();
}
