//! Answers of a chat model, one turn after the other, with a KV cache that lasts.
//!
//! A turn renders the whole conversation, because a template may write earlier turns in another
//! form. Tokens that the cache begins with are not computed again.

use crate::TrainError;
use crate::generate::{Generator, Sampling};
use crate::pretrained::Pretrained;
use crate::vocabulary::template_of;
use lockstep_data::chat::end::end_of_answer;
use lockstep_data::chat::{ChatTemplate, Date, Message};
use lockstep_data::{DataError, Tokenizer};
use lockstep_model::Decoder;
use lockstep_model::sampling::Sampler;
use lockstep_platform::World;
use lockstep_tensor::device::View;

/// A conversation with a model.
pub struct Conversation<'a> {
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    params: Vec<View<'a>>,
    decoder: Decoder<'a>,
    /// Tokens in the cache.
    cached: Vec<u32>,
    sampler: Sampler,
    stops: Vec<u32>,
    messages: Vec<Message>,
}

/// End of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model has ended it.
    Answered,
    /// The limit of tokens is reached.
    Limit,
    /// The context is full.
    Context,
    /// The caller has ended it.
    Interrupted,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Number of its tokens.
    pub num_tokens: usize,
    /// Tokens of the conversation before it, and how many of them were cached.
    pub num_prompt_tokens: usize,
    /// Prompt tokens that were not computed again.
    pub num_cached_tokens: usize,
    /// Why it ended.
    pub stop: Stop,
}

/// Tokens that end an answer: those of the model, and the one that the template writes.
pub fn ends_of_answer(generator: &Generator, template: &ChatTemplate) -> Vec<u32> {
    let mut ends = generator.stops().to_vec();
    ends.extend(end_of_answer(template, generator.tokenizer()));
    ends
}

/// Chat template of this name (`chatml`, or the path of a file), or else that of the model.
pub fn chat_template(
    pretrained: &Pretrained,
    name: Option<&str>,
    date: Date,
    world: &World,
) -> Result<ChatTemplate, TrainError> {
    match name {
        None => template_of(pretrained, date, world),
        Some(name) => Ok(ChatTemplate::named(name, Some(pretrained.path()), date, world.files())?),
    }
}

impl<'a> Conversation<'a> {
    /// An empty conversation.
    pub fn new(
        generator: &'a Generator,
        template: &'a ChatTemplate,
        sampling: Sampling,
    ) -> Result<Self, TrainError> {
        let (blueprint, tokenizer) = (&generator.blueprint, generator.tokenizer());
        let stops = ends_of_answer(generator, template);
        Ok(Self {
            tokenizer,
            template,
            params: generator.views()?,
            decoder: Decoder::new(blueprint, generator.compute.device(), blueprint.context)?,
            cached: Vec::new(),
            sampler: Sampler::new(sampling),
            stops,
            messages: Vec::new(),
        })
    }

    /// Messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Forgets all messages and begins with a system message, if there is one.
    pub fn restart(&mut self, system: Option<&str>) {
        self.messages.clear();
        self.messages.extend(system.map(|system| Message::new("system", system)));
    }

    /// Answers a message by at most `num_tokens` tokens. `on_token` receives each of them and
    /// returns whether to continue. After an error the conversation is as before.
    pub fn answer(
        &mut self,
        message: &str,
        num_tokens: usize,
        on_token: impl FnMut(u32) -> bool,
    ) -> Result<Answer, TrainError> {
        let num_messages = self.messages.len();
        self.messages.push(Message::new("user", message));
        let answer = self.generate(num_tokens, on_token);
        match &answer {
            Ok(answer) => self.messages.push(Message::new("assistant", &answer.text)),
            Err(_) => self.messages.truncate(num_messages),
        }
        answer
    }

    fn generate(
        &mut self,
        num_tokens: usize,
        mut on_token: impl FnMut(u32) -> bool,
    ) -> Result<Answer, TrainError> {
        let text = self.template.render(&self.messages, true).map_err(DataError::from)?;
        let mut prompt = Vec::new();
        self.tokenizer.encode(&text, &mut prompt)?;
        let context = self.decoder.num_positions() + self.decoder.num_remaining();
        if prompt.is_empty() || prompt.len() > context {
            return Err(TrainError::ConversationTooLong { num_tokens: prompt.len(), context });
        }
        let same = self.cached.iter().zip(&prompt).take_while(|(old, new)| old == new).count();
        // The last token is fed in any case: its logits are not kept.
        let num_cached_tokens = same.min(prompt.len() - 1);
        self.decoder.rewind(num_cached_tokens);
        self.cached.truncate(num_cached_tokens);
        let (mut new, mut answer) = (prompt[num_cached_tokens..].to_vec(), Vec::new());
        let stop = loop {
            if answer.len() == num_tokens {
                break Stop::Limit;
            }
            if self.decoder.num_remaining() < new.len() {
                break Stop::Context;
            }
            self.cached.extend(&new);
            let token = self.sampler.draw(self.decoder.feed(&self.params, &new)?);
            if self.stops.contains(&token) {
                break Stop::Answered;
            }
            answer.push(token);
            if !on_token(token) {
                break Stop::Interrupted;
            }
            new = vec![token];
        };
        Ok(Answer {
            text: self.tokenizer.decode(&answer),
            num_tokens: answer.len(),
            num_prompt_tokens: prompt.len(),
            num_cached_tokens,
            stop,
        })
    }
}
