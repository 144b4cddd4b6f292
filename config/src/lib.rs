//! The settings, their units and their defaults.
