//! Decoding token by token gives the logits of a full forward pass.

use super::tiny::{
    BLOOM, Batch, GPT2, LLAMA, LONG, LORA, NEOX, SEQUENTIAL_NEOX, Tiny, VARIED, assert_same,
};
use lockstep_config::Model;
use lockstep_model::{Decoder, Mode, Recompute};
use lockstep_tensor::device::{Buffer, Device, Dtype, Memory, View};
use lockstep_tensor::{Cpu, Isa, cuda};

#[test]
fn decoding_gives_the_logits_of_a_full_forward() {
    let of_gpt2 = [NEOX, SEQUENTIAL_NEOX, BLOOM];
    for model in
        [LLAMA, GPT2, LONG, VARIED, Model { lora: LORA, ..LLAMA }].into_iter().chain(of_gpt2)
    {
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

/// On a machine with CUDA: a GPU has kernels of its own for one row, so its logits are close to
/// those of the CPU, and equal in two runs.
#[test]
fn a_gpu_decodes_to_about_the_logits_of_the_cpu() {
    let Ok(gpu) = cuda::open(0) else { return };
    let cpu = Cpu::single(Isa::detect());
    // Rows that every kernel takes, over several splits of the cached positions.
    let aligned = Model { width: 64, ffn: 96, vocab: 64, context: 200, ..LLAMA };
    let adapted = Model { lora: LORA, ..LLAMA };
    for model in [LLAMA, GPT2, LONG, VARIED, adapted, aligned] {
        let (tiny, batch) = (Tiny::new(&model), Batch::new(&model, 1));
        let upload = |params: &Vec<f32>| -> Buffer {
            let mut buffer = gpu.allocate(Dtype::F32, params.len()).unwrap();
            gpu.copy(View::of(params), buffer.view_mut()).unwrap();
            buffer
        };
        let params: Vec<Buffer> = tiny.params.iter().map(upload).collect();
        let views: Vec<View<'_>> = params.iter().map(Buffer::view).collect();
        // The angles of RoPE are in the memory of one device.
        let other = Tiny::new(&model);
        let mut expected = Decoder::new(&other.blueprint, &cpu, model.context).unwrap();
        let mut runs =
            [(); 2].map(|()| Decoder::new(&tiny.blueprint, &gpu, model.context).unwrap());
        let mut rest = batch.inputs();
        // A prompt, then token by token.
        let mut num = 5;
        while !rest.is_empty() {
            let (tokens, after) = rest.split_at(num);
            (rest, num) = (after, 1);
            let expected = expected.feed(&other.params, tokens).unwrap();
            let [first, second] = runs.each_mut().map(|run| run.feed(&views, tokens).unwrap());
            assert_same(first, second, "two runs");
            for (got, expected) in first.iter().zip(expected) {
                assert!((got - expected).abs() < 1e-3, "{got} is not {expected} in {model:?}");
            }
        }
    }
}

/// The tokens of a decoder whose host takes the first of the largest logits, and those of one whose
/// device chooses, several at a time.
fn assert_greedy_tokens_are_equal(device: &dyn Device, model: &Model, params: &[View<'_>]) {
    let tiny = Tiny::new(model);
    let mut by_host =
        Decoder::new(&tiny.blueprint, device, model.context).expect("work of the device");
    let mut by_device =
        Decoder::new(&tiny.blueprint, device, model.context).expect("work of the device");
    let prompt = [3, 1, 2];
    let mut expected = prompt.to_vec();
    while by_host.num_remaining() > 0 {
        let logits =
            by_host.feed(params, &expected[by_host.num_positions()..]).expect("work of the device");
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let token = logits.iter().position(|logit| *logit >= best).expect("a largest");
        expected.push(token as u32);
    }
    let (mut found, mut num) = (prompt.to_vec(), 1);
    while by_device.num_remaining() > 0 {
        let first = by_device.num_positions();
        by_device.queue(params, &found[first..]).expect("work of the device");
        num = (num + 3).min(by_device.num_remaining() + 1).min(Decoder::MAX_GREEDY);
        by_device.queue_greedy(params, num).expect("work of the device");
        found.extend(by_device.chosen().expect("work of the device"));
    }
    assert_eq!(found, expected, "{model:?}");
}

#[test]
fn greedy_tokens_are_those_of_the_largest_logits() {
    let gpu = cuda::open(0).ok();
    for model in [LLAMA, GPT2, LONG] {
        let tiny = Tiny::new(&model);
        let views: Vec<_> = tiny.params.iter().map(|params| View::of(params)).collect();
        assert_greedy_tokens_are_equal(&Cpu::single(Isa::detect()), &model, &views);
        if let Some(gpu) = &gpu {
            let upload = |params: &Vec<f32>| -> Buffer {
                let mut buffer = gpu.allocate(Dtype::F32, params.len()).unwrap();
                gpu.copy(View::of(params), buffer.view_mut()).unwrap();
                buffer
            };
            let params: Vec<Buffer> = tiny.params.iter().map(upload).collect();
            let views: Vec<_> = params.iter().map(Buffer::view).collect();
            assert_greedy_tokens_are_equal(gpu, &model, &views);
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
