//! Conversations as a token stream with a loss mask.
//!
//! A conversation is rendered by its chat template and encoded as one text. A token is a target if
//! any of its bytes belongs to an answer. Conversations longer than the context are truncated, and
//! those without a target are left out.
//!
//! Preferences are pairs of conversations, the chosen one and then the rejected one. A pair is left
//! out if either has no target.

use std::path::Path;

use lockstep_config::{self as config, FinetuneLoss, Recipe};
use lockstep_platform::World;

use super::conversation_counts::ConversationCounts;
use super::loss_mask::LossMask;
use super::stream::Whole;
use super::tokens::{Run, Tokens};
use crate::chat::conversation::Conversation;
use crate::chat::preference::Preference;
use crate::chat::{ChatError, ChatTemplate, Date, Rendered};
use crate::documents::{DocumentError, Documents, ReadOptions};
use crate::error::DataError;
use crate::tokenizer::Tokenizer;

/// Tokens of a conversation.
struct Encoded {
    tokens: Vec<u32>,
    /// Whether the loss counts each of them.
    is_target: Vec<bool>,
    is_truncated: bool,
}

/// How a recipe reads conversations.
#[derive(Debug, Clone)]
pub(super) struct ConversationReader {
    template: ChatTemplate,
    loss: FinetuneLoss,
    context: usize,
    has_pairs: bool,
}

impl ConversationReader {
    /// Reader of a recipe's conversations; none where its data are text.
    pub(super) fn of(recipe: &Recipe, world: &World) -> Result<Option<Self>, DataError> {
        if recipe.data.format != config::DataFormat::Chat {
            return Ok(None);
        }
        let template = ChatTemplate::of_recipe(recipe, Date::FIXED, world.files())?;
        let config::Finetune { loss, .. } = recipe.finetune;
        let (context, has_pairs) = (recipe.model.context, recipe.finetune.has_pairs());
        Ok(Some(Self { template, loss, context, has_pairs }))
    }

    /// Reads all conversations of a source.
    pub(super) fn read(
        &self,
        source: &str,
        tokenizer: &Tokenizer,
        world: &World,
    ) -> Result<Whole, DataError> {
        let options = ReadOptions { whole_rows: true, ..ReadOptions::default() };
        let mut rows = Documents::open(Path::new(source), &options, world)?;
        let vocab = tokenizer.vocab();
        let (mut run, mut mask, mut ends) =
            (Run::for_vocab(vocab), LossMask::default(), Vec::new());
        let (mut row, mut num_bytes) = (String::new(), 0);
        let mut counts =
            ConversationCounts { has_pairs: self.has_pairs, ..ConversationCounts::default() };
        let mut has_answer = false;
        while rows.next_document(&mut row)? {
            let invalid = |reason: String| {
                let path = rows.current_file().to_owned();
                let place = rows.place();
                DataError::from(DocumentError::NotConversation { path, place, reason })
            };
            let rendered = self.render_row(&row).map_err(invalid)?;
            let encode = |rendered: &Rendered| self.encode(rendered, tokenizer);
            let encoded: Vec<_> = rendered.iter().map(encode).collect::<Result<_, _>>()?;
            num_bytes += rendered.iter().map(|rendered| rendered.text.len() as u64).sum::<u64>();
            has_answer |= rendered.iter().all(|rendered| !rendered.answers.is_empty());
            if !encoded.iter().all(|encoded| encoded.is_target.contains(&true)) {
                counts.dropped += 1;
                continue;
            }
            counts.num += 1;
            counts.truncated += u64::from(encoded.iter().any(|encoded| encoded.is_truncated));
            for Encoded { tokens, is_target, .. } in encoded {
                run.extend(&tokens);
                counts.tokens += tokens.len() as u64;
                for is_target in is_target {
                    counts.targets += u64::from(is_target);
                    mask.push(is_target);
                }
                ends.push(run.len() as u64);
            }
        }
        counts.num_train = counts.num;
        run.shrink();
        let num_tokens = run.len();
        if num_tokens == 0 {
            let (path, context) = (source.into(), self.context);
            return Err(if has_answer {
                DocumentError::LongPrompts { path, context }.into()
            } else {
                DocumentError::NoAnswer { path }.into()
            });
        }
        Ok(Whole {
            name: source.to_owned(),
            tokens: Tokens::Whole(run),
            num_tokens,
            ends: ends.into(),
            vocab,
            shards: None,
            num_bytes,
            mask: Some(mask),
            group: if self.has_pairs { 2 } else { 1 },
            conversations: Some(counts),
        })
    }

    /// Tokens of a conversation within the context.
    fn encode(&self, rendered: &Rendered, tokenizer: &Tokenizer) -> Result<Encoded, DataError> {
        let (mut tokens, mut is_target) = (Vec::new(), Vec::new());
        let Rendered { text, answers } = rendered;
        tokenizer.encode_marked(text, answers, &mut tokens, &mut is_target)?;
        let is_truncated = tokens.len() > self.context + 1;
        tokens.truncate(self.context + 1);
        is_target.truncate(tokens.len());
        // The first token follows nothing, so it is no target.
        if let Some(first) = is_target.first_mut() {
            *first = false;
        }
        Ok(Encoded { tokens, is_target, is_truncated })
    }

    /// Texts of a row: a conversation, or the chosen and the rejected one of a pair.
    fn render_row(&self, row: &str) -> Result<Vec<Rendered>, String> {
        if !self.has_pairs {
            let conversation = Conversation::parse(row)?;
            return Ok(vec![self.render(&conversation).map_err(|error| error.to_string())?]);
        }
        let Preference { conversations, num_answers } = Preference::parse(row)?;
        let pair = conversations.iter().zip(num_answers);
        pair.map(|(conversation, num_answers)| {
            let mut rendered = self.render(conversation).map_err(|error| error.to_string())?;
            let num_earlier = rendered.answers.len().saturating_sub(num_answers);
            rendered.answers.drain(..num_earlier);
            Ok(rendered)
        })
        .collect()
    }

    /// Text of a conversation with its targets.
    fn render(&self, conversation: &Conversation) -> Result<Rendered, ChatError> {
        let Conversation { messages, others } = conversation;
        let turns = messages.iter().enumerate();
        if let Some((turn, message)) =
            turns.into_iter().find(|(_, m)| !self.template.knows(m.role()))
        {
            return Err(ChatError::Role { turn, role: message.role().to_owned() });
        }
        match self.loss {
            FinetuneLoss::Answers => self.template.render_answers(messages, others),
            FinetuneLoss::All => {
                let text = self.template.render_with(messages, others, false)?;
                let whole = 0..text.len();
                Ok(Rendered { text, answers: vec![whole] })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockstep_config::{Blame, Sources, resolve};
    use lockstep_platform::ScratchDir;

    use super::*;
    use crate::batch::{Batch, BatchShape, IGNORE, MicrobatchFilter};
    use crate::corpus::{Corpus, TokenSpan};
    use crate::sample_order::SampleOrder;
    use crate::tokenizer::tests::SMALL;
    use crate::validation::validation_microbatches;

    const CONTEXT: usize = 96;

    /// Two lines a turn, and an end token.
    const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]\n{{ m.content }}{{ eos_token }}\n\
                            {% endfor %}{% if add_generation_prompt %}[assistant]\n{% endif %}";

    const OPENAI: &str = concat!(
        r#"{"messages": [{"role": "user", "content": "One?"}, "#,
        r#"{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Two?"}, "#,
        r#"{"role": "assistant", "content": "No, not two."}]}"#
    );
    const SHAREGPT: &str = concat!(
        r#"{"conversations": [{"from": "human", "value": "Ünïcode?"}, "#,
        r#"{"from": "gpt", "value": "日本"}]}"#
    );
    const ALPACA: &str = r#"{"instruction": "Add.", "input": "1 2", "output": "3"}"#;

    struct Folder {
        world: World,
        scratch: ScratchDir,
    }

    impl Folder {
        fn new(chat: &str) -> Self {
            let world = lockstep_platform::real();
            let scratch = ScratchDir::new(&world, "conversations").unwrap();
            let config = serde_json::json!({"chat_template": TEMPLATE, "eos_token": "<end>"});
            for (name, text) in [
                ("chat.jsonl", chat),
                ("template.jinja", TEMPLATE),
                ("tokenizer/tokenizer.json", &SMALL),
                ("tokenizer/tokenizer_config.json", &config.to_string()),
            ] {
                let path = scratch.path().join(name);
                world.files().create_dir_all(path.parent().unwrap()).unwrap();
                world.files().write_atomic(&path, text.as_bytes()).unwrap();
            }
            Self { world, scratch }
        }

        fn recipe(&self, sets: &[&str]) -> Recipe {
            let path = |name: &str| self.scratch.path().join(name).display().to_string();
            let mut all = vec![
                format!("model.context={CONTEXT}"),
                "data.format=chat".to_owned(),
                format!("data.source={}", path("chat.jsonl")),
                format!("data.validation={}", path("chat.jsonl")),
                "train.batch=4".to_owned(),
                "train.microbatch=2".to_owned(),
                "numerics.invariant_up_to=2".to_owned(),
            ];
            all.extend(sets.iter().map(|set| set.replace("DIR", &path(""))));
            resolve(&Sources { sets: all, ..Sources::default() }).unwrap()
        }

        fn load(&self, sets: &[&str]) -> (Recipe, Result<Corpus, DataError>) {
            let recipe = self.recipe(sets);
            let corpus = Corpus::load(&recipe, &self.world);
            (recipe, corpus)
        }

        fn complaint(&self, sets: &[&str]) -> String {
            let error = self.load(sets).1.unwrap_err();
            assert_eq!(error.blame(), Blame::User);
            error.to_string()
        }
    }

    const BYTES: &str = "finetune.chat_template=DIRtemplate.jinja";
    const TOKENS: [&str; 2] = ["data.tokenizer=DIRtokenizer", "model.vocab=400"];

    /// Text of each sequence, and of its targets.
    fn sequences(recipe: &Recipe, corpus: &Corpus) -> Vec<(String, String)> {
        let validation = validation_microbatches(recipe, corpus).unwrap();
        let microbatches = validation.microbatches.iter();
        let rows =
            microbatches.flat_map(|m| m.inputs.chunks(CONTEXT).zip(m.targets.chunks(CONTEXT)));
        let text = |tokens: &[u32]| {
            let tokens: Vec<u32> =
                tokens.iter().copied().filter(|&t| t != IGNORE && t != 0).collect();
            corpus.tokenizer().decode(&tokens)
        };
        rows.map(|(inputs, targets)| (text(inputs), text(targets))).collect()
    }

    #[test]
    fn targets_are_the_answers_with_bytes_and_with_tokens() {
        let folder = Folder::new(&[OPENAI, "", SHAREGPT, ALPACA].join("\n"));
        for sets in [&[BYTES][..], &TOKENS] {
            let (recipe, corpus) = folder.load(sets);
            let corpus = corpus.unwrap();
            let end = if sets.len() == 1 { "" } else { "<end>" };
            let found: Vec<_> =
                sequences(&recipe, &corpus).into_iter().map(|pair| pair.1).collect();
            let answers = [
                format!("Yes.{end}\nNo, not two.{end}\n"),
                format!("日本{end}\n"),
                format!("3{end}\n"),
            ];
            assert_eq!(found[..3], answers, "{sets:?}");
            let (recipe, all) = folder.load(&[sets, &["finetune.loss=all"]].concat());
            let all = all.unwrap();
            let first = &sequences(&recipe, &all)[0].1;
            let last = format!("[assistant]\nNo, not two.{end}\n");
            assert!(first.contains("user]\nOne?") && first.ends_with(&last), "{first}");
            assert_ne!(all.fingerprint(), corpus.fingerprint());
        }
    }

    #[test]
    fn the_denominator_counts_targets_whatever_microbatches_a_worker_fills() {
        let folder = Folder::new(&[OPENAI, SHAREGPT, ALPACA].join("\n"));
        let (recipe, corpus) = folder.load(&[BYTES]);
        let corpus = corpus.unwrap();
        let order = SampleOrder::of(&recipe, "chat", corpus.train(), &[true; 2]).unwrap();
        let batch = |filter: [bool; 2]| {
            let mut batch = Batch::allocate(BatchShape::largest(&recipe));
            let filter = MicrobatchFilter::Microbatches(&filter);
            batch.fill(1, &order, corpus.train(), filter).unwrap();
            batch
        };
        let (whole, part) = (batch([true; 2]), batch([false, true]));
        assert_eq!(whole.num_targets, whole.targets_in(0..2));
        assert_eq!(part.num_targets, whole.num_targets);
        assert_eq!(part.microbatch(1), whole.microbatch(1));
    }

    #[test]
    fn long_conversations_are_truncated_and_those_without_an_answer_left_out() {
        let long = format!(r#"{{"instruction": "{}", "output": "x"}}"#, "long ".repeat(40));
        let answer = format!(r#"{{"instruction": "Say.", "output": "{}"}}"#, "word ".repeat(40));
        let folder = Folder::new(&[&*long, &answer, OPENAI, OPENAI].join("\n"));
        let (recipe, corpus) = folder.load(&[BYTES]);
        let corpus = corpus.unwrap();
        assert_eq!(
            corpus.train().num_windows(CONTEXT, recipe.data.documents, recipe.data.order),
            3
        );
        let counts = corpus.conversations().unwrap();
        // The validation data are the training data.
        assert_eq!((counts.num, counts.num_train, counts.truncated, counts.dropped), (6, 3, 2, 2));
        assert_eq!(counts.tokens as usize, corpus.num_tokens());
        assert_eq!(sequences(&recipe, &corpus)[0].0.len(), CONTEXT);
        let folder = Folder::new(&long);
        assert!(folder.complaint(&[BYTES]).contains("has an answer within model.context = 96"));
        let folder = Folder::new(r#"{"messages": [{"role": "user", "content": "Hello?"}]}"#);
        let complaint = folder.complaint(&[BYTES]);
        assert!(complaint.contains("no turn of the assistant"), "{complaint}");
    }

    #[test]
    fn both_splits_have_whole_conversations_and_whole_pairs() {
        // The first one is longer than the training split.
        let answer = |n: usize| "x".repeat(if n == 0 { 40 } else { 9 });
        let line = |n: usize| format!(r#"{{"instruction": "{n}?", "output": "{}"}}"#, answer(n));
        let pair = |n: usize| {
            format!(r#"{{"prompt": "{n}?", "chosen": "{}", "rejected": "no"}}"#, answer(n))
        };
        let (of_chat, of_pairs) = (vec![BYTES], vec![BYTES, "finetune.method=dpo"]);
        let make: [(&dyn Fn(usize) -> String, _, _, _); 2] =
            [(&line, of_chat, 1, "1 conversation"), (&pair, of_pairs, 2, "1 pair")];
        for (line, mut sets, group, unit) in make {
            sets.push("data.validation=0.5");
            let complaint = Folder::new(&line(0)).complaint(&sets);
            assert!(complaint.contains(unit), "{complaint}");
            assert!(complaint.contains("data.validation = 0.5"), "{complaint}");
            let folder = Folder::new(&[line(0), line(1)].join("\n"));
            let (recipe, corpus) = folder.load(&sets);
            let corpus = corpus.unwrap();
            let windows = |span: &TokenSpan| {
                span.num_windows(CONTEXT, recipe.data.documents, recipe.data.order)
            };
            assert_eq!([corpus.train(), corpus.validation()].map(windows), [group; 2], "{unit}");
            let counts = corpus.conversations().unwrap();
            assert_eq!((counts.num, counts.num_train, counts.dropped), (2, 1, 0));
            *sets.last_mut().unwrap() = "data.validation=0.0001";
            let complaint = folder.complaint(&sets);
            assert!(complaint.contains(&unit.replace('1', "2")), "{complaint}");
        }
    }

    #[test]
    fn pairs_stay_together_and_their_answers_are_targets() {
        let pair = |n: usize| {
            format!(r#"{{"prompt": "{n}?", "chosen": "yes {n}", "rejected": "no {n}"}}"#)
        };
        let lost = r#"{"prompt": "x", "chosen": "", "rejected": "no"}"#;
        let lines = (0..7).map(pair).chain([lost.to_owned()]).collect::<Vec<_>>();
        let folder = Folder::new(&lines.join("\n"));
        let marked = "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}\
                      {% generation %}{{ m.content }}{% endgeneration %}{% else %}\
                      {{ m.content }}{% endif %};{% endfor %}";
        let path = folder.scratch.path().join("marked.jinja");
        folder.world.files().write_atomic(&path, marked.as_bytes()).unwrap();
        let sets = ["finetune.chat_template=DIRmarked.jinja", "finetune.method=dpo"];
        let (recipe, corpus) = folder.load(&sets);
        let mut corpus = corpus.unwrap();
        let found = sequences(&recipe, &corpus);
        assert_eq!(found.len(), 14, "seven pairs");
        assert_eq!(found[2], ("user:1?;assistant:yes 1".to_owned(), "yes 1".to_owned()));
        assert_eq!(found[3].1, "no 1");
        let references: Arc<[f64]> = (0..14).map(f64::from).collect();
        corpus.set_references([Arc::clone(&references), references]);
        let order = SampleOrder::of(&recipe, "chat", corpus.train(), &[true; 2]).unwrap();
        let mut batch = Batch::allocate(BatchShape::largest(&recipe));
        let mut drawn = Vec::new();
        for step in 0..7 {
            let all = MicrobatchFilter::Microbatches(&[true; 2]);
            batch.fill(step, &order, corpus.train(), all).unwrap();
            assert_eq!(batch.num_targets, 2, "pairs");
            for microbatch in 0..2 {
                let references = batch.references(microbatch).unwrap();
                assert_eq!((references[0] + 1.0).to_bits(), references[1].to_bits());
                assert_eq!((references[0] % 2.0).to_bits(), 0.0_f64.to_bits());
                drawn.push(references[0] as usize / 2);
            }
        }
        for epoch in drawn.chunks_mut(7) {
            epoch.sort_unstable();
            assert_eq!(epoch, [0, 1, 2, 3, 4, 5, 6]);
        }
        let validation = validation_microbatches(&recipe, &corpus).unwrap();
        assert_eq!(validation.num_targets, 7);
        assert_eq!(validation.microbatches[3].references, [6.0, 7.0]);
    }

    #[test]
    fn parquet_gives_the_corpus_of_the_same_json_lines() {
        const GOLDEN: [(&str, &[u8], &[u8]); 3] = [
            (
                "openai",
                include_bytes!("../../golden/openai.parquet"),
                include_bytes!("../../golden/openai.jsonl"),
            ),
            (
                "sequence",
                include_bytes!("../../golden/sequence.parquet"),
                include_bytes!("../../golden/sequence.jsonl"),
            ),
            (
                "pairs",
                include_bytes!("../../golden/pairs.parquet"),
                include_bytes!("../../golden/pairs.jsonl"),
            ),
        ];
        let folder = Folder::new("");
        for (name, parquet, lines) in GOLDEN {
            let load = |ending: &str, bytes: &[u8]| {
                let path = folder.scratch.path().join(format!("{name}.{ending}"));
                folder.world.files().write_atomic(&path, bytes).unwrap();
                let source = format!("data.source=DIR{name}.{ending}");
                let mut sets = vec![BYTES, &source, "data.validation=0.2", "model.context=200"];
                if name == "pairs" {
                    sets.push("finetune.method=dpo");
                }
                let corpus = folder.load(&sets).1.unwrap();
                (corpus.fingerprint(), corpus.conversations())
            };
            let (found, expected) = (load("parquet", parquet), load("jsonl", lines));
            assert_eq!(found, expected, "{name}");
            assert_eq!(found.1.map(|counts| counts.num), Some(30), "{name}");
        }
        // A row that is no conversation is named by its number.
        let path = folder.scratch.path().join("edges.parquet");
        folder.world.files().write_atomic(&path, EDGES).unwrap();
        let complaint = folder.complaint(&[BYTES, "data.source=DIRedges.parquet"]);
        assert!(complaint.contains("edges.parquet row 0 is no conversation"), "{complaint}");
    }

    const EDGES: &[u8] = include_bytes!("../../golden/edges.parquet");

    #[test]
    fn bad_lines_are_named_with_the_reason() {
        let bad = r#"{"conversations": [{"from": "cat", "value": "x"}]}"#;
        let folder = Folder::new(&[OPENAI, "", bad].join("\n"));
        let complaint = folder.complaint(&[BYTES]);
        assert!(complaint.contains("chat.jsonl line 3 is no conversation"), "{complaint}");
        let stranger = r#"{"messages": [{"role": "usr", "content": "x"}]}"#;
        let complaint = Folder::new(stranger).complaint(&[BYTES]);
        assert!(complaint.contains("line 1") && complaint.contains("role \"usr\""), "{complaint}");
        let complaint = folder.complaint(&[]);
        assert!(complaint.starts_with("tokenizer byte has no chat template"), "{complaint}");
        let refusal = "finetune.chat_template=DIRrefusal.jinja";
        let template = "{{ raise_exception('only system turns') }}";
        let path = folder.scratch.path().join("refusal.jinja");
        folder.world.files().write_atomic(&path, template.as_bytes()).unwrap();
        let complaint = folder.complaint(&[refusal]);
        assert!(
            complaint.contains("line 1") && complaint.contains("only system turns"),
            "{complaint}"
        );
    }
}
