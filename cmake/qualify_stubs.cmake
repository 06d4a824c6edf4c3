# Stubs are written for the extension as it lies in the build folder, alone; where it is installed it is softmrc._core.
file(GLOB STUBS ${FOLDER}/*.pyi)
foreach(STUB ${STUBS})
  file(READ ${STUB} TEXT)
  string(REPLACE "from _core import" "from softmrc._core import" TEXT "${TEXT}")
  string(REPLACE "\nimport _core\n" "\nfrom softmrc import _core\n" TEXT "\n${TEXT}")
  string(SUBSTRING "${TEXT}" 1 -1 TEXT)
  file(WRITE ${STUB} "${TEXT}")
endforeach()
