"""Pictures of coloured shapes, and questions about them with one right answer each, in English and Chinese."""
