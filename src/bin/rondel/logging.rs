//! What the library logs, on standard error.

use crate::stop::Stop;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Variable that says what is logged: `info`, `debug`, `rondel=trace`, ...
const VARIABLE: &str = "RONDEL_LOG";

/// Starts logging by `RONDEL_LOG`; warnings by default.
pub(crate) fn start() -> Result<(), Stop> {
    let wish = std::env::var(VARIABLE).unwrap_or_else(|_| "warn".to_owned());
    let filter = EnvFilter::try_new(&wish).map_err(|e| {
        Stop::Usage(format!(
            "{VARIABLE}={wish:?} is no filter ({e}): use error, warn, info, debug or trace, or a list such as \
             rondel=debug,info"
        ))
    })?;
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
    Ok(())
}
