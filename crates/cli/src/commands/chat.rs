//! `lockstep chat`: a conversation with a trained model in the terminal.

use crate::common_flags::device_choice;
use crate::failure::Failure;
use crate::output;
use crate::sampling_flags::SamplingFlags;
use crate::text_stream::TextStream;
use lockstep_config::{Blame, DeviceChoice};
use lockstep_data::chat::Date;
use lockstep_platform::World;
use lockstep_platform::processes::Interrupts;
use lockstep_trainer::adapter_folder::ModelPath;
use lockstep_trainer::conversation::{Answer, Conversation, Stop, chat_template};
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::Pretrained;
use lockstep_trainer::{RunFolder, TrainError};
use serde::Serialize;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Talk to a chat model in the terminal
#[derive(clap::Args)]
#[command(after_help = "\
Commands in the conversation:
  /reset          begin a new conversation
  /system TEXT    begin a new one with this system message; without TEXT, with none
  /help           these commands
  /exit           end, as Ctrl-D does

Ctrl-C ends an answer; between answers it ends the command.

Examples:
  lockstep chat                               the newest run
  lockstep chat my-llama-instruct
  lockstep chat my-adapter --base my-llama-instruct
  lockstep chat my-llama --template chatml --system \"Answer in one sentence.\"
  printf 'Hello\\nAnd in French?\\n' | lockstep chat my-llama --temperature 0 --json")]
pub(crate) struct Arguments {
    /// Folder of a Hugging Face chat model, of a finished run or of a PEFT adapter (default: the
    /// newest run)
    model: Option<PathBuf>,
    /// Folder of the model beside a PEFT adapter (default: the one that the adapter names)
    #[arg(long, value_name = "DIR", requires = "model")]
    base: Option<PathBuf>,
    /// System message at the start of the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Chat template: chatml, or the path of a Jinja file (default: that of the folder)
    #[arg(long, value_name = "TEMPLATE")]
    template: Option<String>,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 512)]
    tokens: usize,
    #[command(flatten)]
    sampling: SamplingFlags,
    /// Device of the model: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_parser = device_choice)]
    device: DeviceChoice,
    /// One JSON value on standard output at the end
    #[arg(long)]
    json: bool,
}

/// Longest line that is read.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Time after the first Ctrl-C of an answer during which another one does not end the command.
const INTERRUPT_REPEAT: Duration = Duration::from_secs(1);

const HELP: &str = "/reset, /system TEXT, /help, /exit; Ctrl-C ends an answer\n";

/// The conversation. Field names are stable: scripts rely on them.
#[derive(Serialize)]
struct Report {
    model: String,
    turns: Vec<Turn>,
}

/// A message and its answer.
#[derive(Serialize)]
struct Turn {
    user: String,
    assistant: String,
    num_tokens: usize,
    num_prompt_tokens: usize,
    num_cached_tokens: usize,
    /// `answered`, `limit`, `context` or `interrupted`.
    stop: &'static str,
}

/// A line of the user.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Message(&'a str),
    Reset,
    System(Option<&'a str>),
    Help,
    Exit,
    Nothing,
    Unknown(&'a str),
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        let line = line.trim();
        let Some(command) = line.strip_prefix('/') else {
            return if line.is_empty() { Self::Nothing } else { Self::Message(line) };
        };
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "reset" => Self::Reset,
            "system" => Self::System(Some(rest).filter(|text| !text.is_empty())),
            "help" | "?" => Self::Help,
            "exit" | "quit" | "bye" => Self::Exit,
            // A path or a fraction of a word is a message.
            _ if name.contains('/') => Self::Message(line),
            _ => Self::Unknown(name),
        }
    }
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let sampling = arguments.sampling.resolve()?;
    let model = match &arguments.model {
        Some(path) => path.clone(),
        None => RunFolder::newest(world)?.path().to_owned(),
    };
    let path = ModelPath { folder: &model, base: arguments.base.as_deref() };
    let pretrained = Pretrained::open(path, world)?;
    let mut recipe = pretrained.recipe(world)?;
    recipe.run.device = arguments.device;
    let family = recipe.model.family;
    if family.is_problem() {
        let (dir, family) = (model.display().to_string(), family.name());
        return Err(TrainError::NoText { dir, family }.into());
    }
    let (name, date) = (arguments.template.as_deref(), Date::since_1970(world.clock().wall()));
    let template = chat_template(&pretrained, name, date, world)?;
    let generator = Generator::load(&pretrained, &recipe, world)?;
    let mut conversation = Conversation::new(&generator, &template, sampling)?;
    conversation.restart(arguments.system.as_deref());
    let is_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let mut terminal = Terminal {
        is_interactive: is_terminal,
        shows_text: !arguments.json,
        printed: Ok(()),
        world,
    };
    terminal.note(HELP);
    let (mut turns, mut system) = (Vec::new(), arguments.system.clone());
    let mut failed = None;
    while let Some(line) = terminal.read_line()? {
        match Line::parse(&line) {
            Line::Nothing => {}
            Line::Exit => break,
            Line::Help => terminal.note(HELP),
            Line::Unknown(name) => terminal.note(&format!("/{name} is no command: {HELP}")),
            Line::Reset => {
                conversation.restart(system.as_deref());
                terminal.note("a new conversation\n");
            }
            Line::System(text) => {
                system = text.map(str::to_owned);
                conversation.restart(system.as_deref());
                terminal.note("a new conversation\n");
            }
            Line::Message(message) => {
                let answer =
                    terminal.answer(&mut conversation, message, arguments.tokens, &generator);
                match answer {
                    Ok(answer) => turns.push(Turn::new(message, answer)),
                    // A person goes on; a script learns of it by the exit code.
                    Err(error) if is_terminal && error.blame() == Blame::User => {
                        terminal.note(&format!("{error}\n"));
                    }
                    // The turns so far are printed in any case.
                    Err(error) => {
                        failed = Some(Failure::from(error));
                        break;
                    }
                }
                std::mem::replace(&mut terminal.printed, Ok(()))?;
            }
        }
    }
    terminal.note("\n");
    if arguments.json {
        output::json(&Report { model: model.display().to_string(), turns })?;
    }
    failed.map_or(Ok(()), Err)
}

impl Turn {
    fn new(message: &str, answer: Answer) -> Self {
        let stop = match answer.stop {
            Stop::Answered => "answered",
            Stop::Limit => "limit",
            Stop::Context => "context",
            Stop::Interrupted => "interrupted",
        };
        let Answer { text, num_tokens, num_prompt_tokens, num_cached_tokens, .. } = answer;
        let user = message.to_owned();
        Self { user, assistant: text, num_tokens, num_prompt_tokens, num_cached_tokens, stop }
    }
}

/// Standard input, output and error of the conversation.
struct Terminal<'a> {
    /// Whether a person types and reads notes.
    is_interactive: bool,
    /// Whether answers are printed.
    shows_text: bool,
    /// Whether standard output took the last answer.
    printed: Result<(), Failure>,
    world: &'a World,
}

impl Terminal<'_> {
    /// Prints a note for a person.
    fn note(&self, text: &str) {
        if self.is_interactive {
            // A closed standard error is not a failure of the command.
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
    }

    /// Next line; none at the end of the input. Ctrl-C ends the command while it waits.
    fn read_line(&mut self) -> Result<Option<String>, Failure> {
        self.world.processes().handle_interrupts(Interrupts::End);
        self.note("> ");
        let mut bytes = Vec::new();
        let mut input = std::io::stdin().lock().take(MAX_LINE_BYTES);
        let read = input
            .read_until(b'\n', &mut bytes)
            .map_err(|error| Failure::new(Blame::Storage, format!("standard input: {error}")))?;
        if read as u64 == MAX_LINE_BYTES {
            return Err(Failure::user(format!("a message has more than {MAX_LINE_BYTES} bytes")));
        }
        let line = String::from_utf8(bytes)
            .map_err(|_| Failure::user("a message is not UTF-8 text".to_owned()))?;
        Ok(Some(line).filter(|_| read > 0))
    }

    /// Answers a message and prints the answer as it comes; Ctrl-C ends it.
    fn answer(
        &mut self,
        conversation: &mut Conversation<'_>,
        message: &str,
        num_tokens: usize,
        generator: &Generator,
    ) -> Result<Answer, TrainError> {
        let processes = self.world.processes();
        let effect = Interrupts::Defer { line: "", repeat: INTERRUPT_REPEAT };
        processes.handle_interrupts(effect);
        let mut stream = TextStream::new(generator.tokenizer());
        let (shows_text, mut printed) = (self.shows_text, Ok(()));
        let mut print = |text: &str| {
            if shows_text && printed.is_ok() {
                printed = output::generated(text);
            }
            printed.is_ok()
        };
        let answer = conversation.answer(message, num_tokens, |token| {
            print(&stream.push(token)) && !processes.take_interrupt()
        })?;
        print(&(stream.finish() + "\n"));
        match answer.stop {
            Stop::Limit => self.note(&format!("(ended after --tokens {num_tokens})\n")),
            Stop::Context => self.note("(the model's context is full; /reset begins anew)\n"),
            Stop::Interrupted => self.note("(interrupted)\n"),
            Stop::Answered => {}
        }
        processes.take_interrupt();
        self.printed = printed;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        for (line, expected) in [
            ("  hello there \n", Line::Message("hello there")),
            ("\n", Line::Nothing),
            ("/reset", Line::Reset),
            ("/system  Be brief. \n", Line::System(Some("Be brief."))),
            ("/system", Line::System(None)),
            ("/help", Line::Help),
            ("/quit\n", Line::Exit),
            ("/usr/bin/env is what?", Line::Message("/usr/bin/env is what?")),
            ("/clear now", Line::Unknown("clear")),
        ] {
            assert_eq!(Line::parse(line), expected);
        }
    }
}
