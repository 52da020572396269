//! Tests of the planner against published numbers, closed forms and schedules.

mod common;

mod bubbles;
mod collectives;
mod ground_truth;
mod layers;
mod memory;
mod models;
mod nccl;
mod oracles;
mod pipelines;
mod programs;
mod published;
mod scaling;
mod schedules;
mod stability;
mod stragglers;
mod time;
mod worked_numbers;
