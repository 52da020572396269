//! Generation: several prompts together, and conversations with a chat template.

use lockstep_data::chat::{ChatTemplate, Date};
use lockstep_harness::recipes::{GPT2, LLAMA, Small};
use lockstep_harness::{Runs, golden};
use lockstep_trainer::conversation::{Conversation, Stop};
use lockstep_trainer::generate::{Ending, Ends, Generator, Sampling};
use lockstep_trainer::pretrained::Pretrained;

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 3 };

/// A model after a few steps, in its run folder.
fn trained(small: &Small, runs: &mut Runs) -> Generator {
    let context = "model.context=48";
    let recipe = small.with(&["train.steps=3", "train.eval_batches=1", "run.threads=2", context]);
    let dir = runs.finish(&recipe).dir;
    let pretrained = Pretrained::open(&dir, runs.world()).expect("it was written");
    Generator::load(&pretrained, &recipe, runs.world()).expect("all its tensors")
}

#[test]
fn prompts_together_have_the_texts_of_each_alone() {
    let mut runs = Runs::new("generation");
    let longer_than_context = "And God said, Let there be light: and there was light. ".repeat(2);
    let prompts = ["In the beginning", "", "x", &longer_than_context, "And he said"];
    let prompts: Vec<String> = prompts.iter().map(|prompt| (*prompt).to_owned()).collect();
    for small in [LLAMA, GPT2] {
        let generator = trained(&small, &mut runs);
        for sampling in [GREEDY, Sampling { temperature: 0.9, top_p: 0.95, ..GREEDY }] {
            // More tokens than the context holds, so that every text is cut once.
            let mut num_done = 0;
            let count = &mut |num| num_done = num;
            let together = generator.generate_batch(&prompts, &Ends::after(60), sampling, count);
            let together = together.expect("the CPU runs every operation");
            assert_eq!(num_done, 60 * prompts.len());
            for (prompt, found) in prompts.iter().zip(together) {
                let alone = generator.generate(prompt, &Ends::after(60), sampling, |_| true);
                assert_eq!(found, alone.expect("as before"), "{}: {prompt:?}", small.name);
            }
        }
    }
}

#[test]
fn a_text_ends_at_an_end_token_or_a_text_alone_and_together() {
    let mut runs = Runs::new("generation");
    let generator = trained(&LLAMA, &mut runs);
    assert!(generator.stops().is_empty(), "bytes have no end of a document");
    let prompts = ["In the beginning", "x", "And he"].map(str::to_owned);
    let sampling = Sampling { temperature: 0.9, ..GREEDY };
    let generate = |prompt: &str, ends: &Ends| {
        generator.generate(prompt, ends, sampling, |_| true).expect("the CPU runs it")
    };
    let whole = prompts.each_ref().map(|prompt| generate(prompt, &Ends::after(60)));
    assert!(whole.iter().all(|one| one.ending == Ending::Limit && one.tokens.len() == 60));
    // The twentieth token of the first text, wherever it occurs first.
    let end = whole[0].tokens[20];
    let at_token = Ends { tokens: vec![end], ..Ends::after(60) };
    let stop = generator.tokenizer().decode(&whole[0].tokens[30..33]);
    let at_text = Ends { texts: vec!["no such text".to_owned(), stop.clone()], ..Ends::after(60) };
    for ends in [&at_token, &at_text] {
        let together = generator.generate_batch(&prompts, ends, sampling, &mut |_| {});
        for ((prompt, whole), found) in prompts.iter().zip(&whole).zip(together.expect("runs")) {
            let alone = generate(prompt, ends);
            assert_eq!(found, alone, "{prompt:?}");
            assert_eq!(alone.tokens, whole.tokens[..alone.tokens.len()], "{prompt:?}");
            match alone.ending {
                Ending::Token => assert_eq!(whole.tokens[alone.tokens.len()], end),
                Ending::Text { len } => assert_eq!(whole.text.find(&stop), Some(len)),
                Ending::Limit => {
                    assert!(!whole.tokens.contains(&end) || ends == &at_text);
                    assert!(!whole.text.contains(&stop) || ends == &at_token);
                }
            }
        }
    }
    let first = generate(&prompts[0], &at_token);
    assert_eq!((first.ending, first.tokens.contains(&end)), (Ending::Token, false));
    let first = generate(&prompts[0], &at_text);
    assert!(matches!(first.ending, Ending::Text { .. }) && !first.text.contains(&stop));
}

#[test]
fn a_conversation_continues_as_its_whole_text_does() {
    let world = lockstep_platform::real();
    let folder = golden::folder().join("tasks").join("model");
    let pretrained = Pretrained::open(&folder, &world).expect("a valid folder");
    let recipe = pretrained.recipe(&world).expect("a valid recipe");
    let generator = Generator::load(&pretrained, &recipe, &world).expect("all its tensors");
    let source = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}\
                  {% if add_generation_prompt %}a:{% endif %}";
    let template = ChatTemplate::parse("test", source, Vec::new(), Date::FIXED).expect("valid");
    let mut chat = Conversation::new(&generator, &template, GREEDY).expect("a cache");
    chat.restart(Some("s"));
    let mut streamed = Vec::new();
    let first = chat.answer("river", 5, |token| {
        streamed.push(token);
        true
    });
    let first = first.expect("it fits");
    let text = "s:s\nu:river\na:";
    let alone = generator.generate(text, &Ends::after(5), GREEDY, |_| true).expect("it fits");
    assert_eq!(streamed, alone.tokens);
    assert_eq!((first.stop, first.num_cached_tokens), (Stop::Limit, 0));
    // The second turn computes only what is new, and continues the whole text.
    let second = chat.answer("stone", 4, |_| true).expect("it fits");
    let text = format!("{text}{}\nu:stone\na:", first.text);
    let alone = generator.generate(&text, &Ends::after(4), GREEDY, |_| true).expect("it fits");
    assert_eq!(second.text, generator.tokenizer().decode(&alone.tokens));
    assert!(second.num_cached_tokens > 4 && second.num_prompt_tokens > second.num_cached_tokens);
    let third = chat.answer("glass", 50, |_| false).expect("it fits");
    assert_eq!((third.stop, third.num_tokens, chat.messages().len()), (Stop::Interrupted, 1, 7));
    // What does not fit is refused, and leaves the conversation as it was.
    let long = "water ".repeat(100);
    let error = chat.answer(&long, 5, |_| true).expect_err("the context holds 96").to_string();
    assert!(error.contains("context is 96") && chat.messages().len() == 7, "{error}");
    chat.restart(None);
    let full = chat.answer("sand", 500, |_| true).expect("it fits");
    assert!(matches!(full.stop, Stop::Context | Stop::Answered), "{full:?}");
    assert_eq!(chat.messages().len(), 2);
}
