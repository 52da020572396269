//! Tests of the planner against published numbers, closed forms and schedules.

mod common;

mod bubbles;
mod collectives;
mod layers;
mod memory;
mod pipelines;
mod scaling;
mod schedules;
mod stability;
mod time;
mod worked_numbers;
