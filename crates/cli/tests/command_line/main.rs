//! End-to-end tests of the binary: output, files and exit codes.
//!
//! # Layout
//! - `process`: runs the binary in a scratch folder
//! - `commands`: every command, and the stable JSON names
//! - `config`: one key, the search, synonyms, the DeepSpeed import and names of devices
//! - `help_text`: help and plans use the field's words
//! - `bad_input`: errors are one line, and nothing is overwritten
//! - `compare`, `convert`, `data`, `lab`, `bench_comm`, `methods`, `sweep`: one command each
//! - `dashboard`: runs in a browser and as a page
//! - `plan`: predictions of recipes; `clusters`, `sizes`: plans for clusters
//! - `adapters`: folders of adapters as models
//! - `answers`: tasks of multiple choice, conversations and prompts
//! - `data_pipeline`: data placements, tokenizers and evaluation
//! - `problems`: small problems and lints
//! - `launch`, `rendezvous`, `remote_workers`: workers of one launcher, of several, of other hosts
//! - `torchrun`: workers of torchrun and of launchers that set its variables
//! - `runs`: the list of runs; `shells`: completion scripts and manual pages
//! - `layouts`, `pipelines`: every layout is bit-identical to one worker
//! - `terminal`: output on a pseudo-terminal, colours, and common flags
//! - `epochs`: runs of a number of passes over the data
//! - `emulated_links`, `stragglers`: emulated links and slow workers; `explain`: traces of jobs;
//!   `diagnosis`: runs with a planted cause
//! - `servers`, `replicas`: parameter servers and their replicas
//! - `failures`, `restarts`, `cleanup`: killed or frozen workers; `interrupts`: Ctrl-C; `resume`:
//!   runs by their recorded recipe
//! - `storage`: full and read-only disks; `storage_locations`: folders of runs and checkpoints

mod adapters;
mod answers;
mod bad_input;
mod bench_comm;
mod check;
mod cleanup;
mod clusters;
mod commands;
mod compare;
mod config;
mod convert;
mod dashboard;
mod data;
mod data_cleaning;
mod data_pipeline;
mod diagnosis;
mod emulated_links;
mod epochs;
mod explain;
mod failures;
mod help_text;
mod hosts;
mod interrupts;
mod lab;
mod launch;
mod layouts;
mod methods;
mod mpi;
mod pipelines;
mod plan;
mod problems;
mod process;
mod remote_workers;
mod rendezvous;
mod replicas;
mod restarts;
mod resume;
mod runs;
mod servers;
mod shells;
mod sizes;
mod storage;
mod storage_locations;
mod stragglers;
mod sweep;
mod terminal;
mod torchrun;
