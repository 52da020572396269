//! Conversations as text: chat templates, as Hugging Face tokenizers bring them.
//!
//! A chat model expects its conversations in one exact form, which its tokenizer folder describes
//! as a Jinja template. Rendering equals `apply_chat_template` of `transformers` (compared with it
//! on golden files), so that training and chatting present what the model has seen.
//!
//! # Layout
//!
//! - [`message`]: a message of a conversation
//! - [`conversation`]: conversations of a data set
//! - [`preference`]: pairs of a chosen and a rejected conversation
//! - [`template`]: a template and its rendering
//! - [`held_out`]: a prompt that a run has not trained on
//! - [`end`]: the token that ends an answer
//! - `python`: what templates expect of Python: methods, JSON
//! - [`date`]: the date that a template may print
//! - [`error`]: errors of a template
//!
//! # Example
//!
//! ```
//! use lockstep_data::chat::{ChatTemplate, Date, Message};
//!
//! let template = ChatTemplate::chatml(Date::FIXED);
//! let text = template.render(&[Message::new("user", "Hello")], true)?;
//! assert_eq!(text, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
//! # Ok::<(), lockstep_data::chat::ChatError>(())
//! ```

pub mod conversation;
pub mod message;
pub mod preference;
pub mod template;

pub mod end;
pub mod held_out;

mod python;

pub mod date;

pub mod error;

pub use date::Date;
pub use error::ChatError;
pub use message::Message;
pub use template::{ChatTemplate, Rendered};
